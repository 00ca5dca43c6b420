# cmake -D A=<program> -D B=<program> -P CheckSameOutput.cmake
#
# Fails unless both programs exit with 0 and print the same text, which is not empty. Names the lines that only A prints.
cmake_policy(SET CMP0007 NEW)
foreach(which IN ITEMS A B)
  execute_process(COMMAND ${${which}} RESULT_VARIABLE code OUTPUT_VARIABLE out_${which})
  if(NOT code STREQUAL 0)
    message(FATAL_ERROR "the exit code of ${${which}} is ${code}")
  endif()
  string(REPLACE "\n" ";" lines_${which} "${out_${which}}")
endforeach()
list(LENGTH lines_A count)
if(out_A STREQUAL "" OR NOT out_A STREQUAL out_B)
  list(REMOVE_ITEM lines_A ${lines_B})
  list(JOIN lines_A "\n  " differ)
  message(FATAL_ERROR "of ${count} lines, these are printed only by ${A}:\n  ${differ}")
endif()
message(STATUS "both print the same ${count} lines")
