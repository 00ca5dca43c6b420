# cmake -D OUTPUT=<file> -P Run.cmake -- <program> <argument>...
#
# Runs a program and keeps what it prints to standard output. What it says to standard error is shown if it fails.
set(command "")
set(is_command FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(is_command)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(is_command TRUE)
  endif()
endforeach()
execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE printed ERROR_VARIABLE said)
if(NOT code STREQUAL 0)
  message(FATAL_ERROR "${command} ended with ${code}:\n${said}")
endif()
file(WRITE ${OUTPUT} "${printed}")
