# cmake -D COMPILER=<c++> -D FLAGS=<flags, a list> -D SOURCE=<file.cpp> [-D HEADER=<precompiled header>]
#       [-D LIBRARY=<library>] [-D ONLY_MISTAKE=ON] -P CheckCompileFail.cmake
#
# Checks a compile error. The file must compile as it is, which shows that nothing else is wrong with it. With -DATTN_KO
# it must not compile, and the compiler's first error must contain the text of each line `// expect: …` of the file. No
# other error text of ours may follow: one mistake, one remedy.
#
# The mistake may be in the flags instead: `// with: …` adds one, in which {here} is the file's folder, and `// without:
# -isystem` removes that flag and its value. Such a file only includes the header. It is not compiled without its
# mistake, because other files are.
#
# ONLY_MISTAKE: skips the check that the file compiles as it is, which CheckCompileTogether.cmake does.
# HEADER: included first, to save time. It was precompiled with FLAGS, so files that change the flags do not use it.
# LIBRARY: the file is a program, which must link with the library and must not without it; the expectations refer to
# the linker's first error.
cmake_minimum_required(VERSION 3.22)

file(STRINGS ${SOURCE} expectations REGEX "^// expect: ")
list(TRANSFORM expectations REPLACE "^// expect: " "")
if(NOT expectations)
  message(FATAL_ERROR "${SOURCE} has no line `// expect: …`")
endif()

set(compile ${COMPILER} -std=c++20 ${FLAGS} ${SOURCE})
if(LIBRARY)
  get_filename_component(program ${SOURCE} NAME_WE)
  list(APPEND compile -pthread -o compile_fail_${program})
  set(good ${compile} ${LIBRARY})
  set(bad ${compile})
else()
  list(APPEND compile -fsyntax-only)
  file(STRINGS ${SOURCE} mistakes REGEX "^// with(out)?: ")
  if(mistakes)
    cmake_path(GET SOURCE PARENT_PATH here)
    set(good "")
    set(bad ${compile})
    foreach(mistake IN LISTS mistakes)
      if(mistake MATCHES "^// without: (.*)$")
        string(REGEX REPLACE ";${CMAKE_MATCH_1};[^;]*" "" bad "${bad}")
      else()
        string(REGEX REPLACE "^// with: " "" mistake "${mistake}")
        string(REPLACE "{here}" "${here}" mistake "${mistake}")
        list(APPEND bad ${mistake})
      endif()
    endforeach()
  else()
    if(HEADER)
      list(APPEND compile -include ${HEADER})
    endif()
    set(good ${compile})
    set(bad ${compile} -DATTN_KO)
  endif()
endif()

if(good AND NOT ONLY_MISTAKE)
  execute_process(COMMAND ${good} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE} must compile without its mistake, but:\n${output}")
  endif()
endif()

execute_process(COMMAND ${bad} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must not compile with its mistake, but does")
endif()
string(REGEX MATCH "(error: |undefined reference to )[^\n]*" first_error "${output}")
foreach(expected IN LISTS expectations)
  string(FIND "${first_error}" "${expected}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: the first error should have said\n  ${expected}\nbut the compiler said\n${output}")
  endif()
endforeach()
string(REPLACE ";" "," lines "${output}")  # semicolons would split sentences
string(REGEX MATCHALL "error: static[^\n]*[ \"]attn: [^\n]*" sentences "${lines}")
list(REMOVE_DUPLICATES sentences)
list(LENGTH sentences count)
if(count GREATER 1)
  message(FATAL_ERROR "${SOURCE}: one mistake should give one sentence, but the compiler said\n${output}")
endif()
