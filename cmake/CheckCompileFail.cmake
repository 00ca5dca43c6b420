# cmake -D COMPILER=<c++> -D FLAGS=<flags, a list> -D SOURCE=<file.cpp> -P CheckCompileFail.cmake
#
# The file must compile as it is, and must not with -DATTN_KO; then the compiler's first error must be ours: it holds
# the text of each line `// expect: …` of the file. The first variant shows that nothing else is wrong with the second.
cmake_minimum_required(VERSION 3.22)

file(STRINGS ${SOURCE} expectations REGEX "^// expect: ")
list(TRANSFORM expectations REPLACE "^// expect: " "")
if(NOT expectations)
  message(FATAL_ERROR "${SOURCE} has no line `// expect: …`")
endif()

set(compile ${COMPILER} -std=c++20 -fsyntax-only ${FLAGS})
execute_process(COMMAND ${compile} ${SOURCE} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must compile without ATTN_KO, but:\n${output}")
endif()

execute_process(COMMAND ${compile} -DATTN_KO ${SOURCE} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must not compile with ATTN_KO, but does")
endif()
string(REGEX MATCH "error: [^\n]*" first_error "${output}")
foreach(expected IN LISTS expectations)
  string(FIND "${first_error}" "${expected}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: the first error should have said\n  ${expected}\nbut the compiler said\n${output}")
  endif()
endforeach()
