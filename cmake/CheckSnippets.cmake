# cmake -D COMPILER=<c++> -D FLAGS=<flags, a list> -D "PAGES=<page.md>;…" -D GIVEN=<given.h> -D UNIT=<file to write>
#       -P CheckSnippets.cmake
#
# Checks that the pages' C++ blocks compile: each as the body of a function with a using-directive for a namespace of
# GIVEN, which the line above the block names: `<!-- given: name -->`. `#include` lines are for the reader. Nothing is
# run. All blocks are one unit, because most of the time goes to the headers.
cmake_minimum_required(VERSION 3.22)

set(unit "#include \"${GIVEN}\"\n")
set(count 0)
foreach(page IN LISTS PAGES)
  file(READ ${page} rest)
  set(line 1)
  set(before_page ${count})
  while(TRUE)
    string(FIND "${rest}" "```cpp\n" at)
    if(at EQUAL -1)
      break()
    endif()
    string(SUBSTRING "${rest}" 0 ${at} before)
    math(EXPR at "${at} + 7")
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(REGEX REPLACE "[^\n]" "" newlines "${before}")
    string(LENGTH "${newlines}" lines)
    math(EXPR line "${line} + ${lines} + 1")
    if(NOT before MATCHES "<!-- given: ([a-z_]+) -->\n *$")
      message(FATAL_ERROR "a block without names:\n  ${page}:${line}: the block has no line `<!-- given: name -->` above it")
    endif()
    set(given ${CMAKE_MATCH_1})
    string(FIND "${rest}" "```" end)
    string(SUBSTRING "${rest}" 0 ${end} block)
    string(SUBSTRING "${rest}" ${end} -1 rest)
    string(REPLACE "#include" "//" body "${block}")
    string(APPEND unit "[[maybe_unused]] static void block_${count}() {\nusing namespace given::${given};\n"
                       "#line ${line} \"${page}\"\n${body}}\n")
    string(REGEX REPLACE "[^\n]" "" newlines "${block}")
    string(LENGTH "${newlines}" lines)
    math(EXPR line "${line} + ${lines}")
    math(EXPR count "${count} + 1")
  endwhile()
  if(count EQUAL before_page)
    message(FATAL_ERROR "nothing to compile:\n  ${page} has no block of C++")
  endif()
endforeach()
file(WRITE ${UNIT} "${unit}")

execute_process(COMMAND ${COMPILER} -std=c++20 ${FLAGS} -fsyntax-only ${UNIT}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "C++ that does not compile:\n${output}")
endif()
message(STATUS "${count} blocks compile")
