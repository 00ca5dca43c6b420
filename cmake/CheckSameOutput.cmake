# cmake -D A=<program> -D B=<program> -P CheckSameOutput.cmake
#
# Fails unless both programs exit with 0 and print the same lines, and at least one. Names the lines that differ.
foreach(which IN ITEMS A B)
  execute_process(COMMAND ${${which}} RESULT_VARIABLE code OUTPUT_VARIABLE out)
  if(NOT code STREQUAL 0)
    message(FATAL_ERROR "the exit code of ${${which}} is ${code}")
  endif()
  string(STRIP "${out}" out)
  string(REPLACE "\n" ";" lines_${which} "${out}")
endforeach()
list(LENGTH lines_A count)
list(REMOVE_ITEM lines_A ${lines_B})
if(count EQUAL 0 OR lines_A)
  list(JOIN lines_A "\n  " differ)
  message(FATAL_ERROR "of ${count} lines, these are printed only by ${A}:\n  ${differ}")
endif()
message(STATUS "all ${count} lines are the same")
