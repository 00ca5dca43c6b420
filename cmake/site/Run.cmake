# cmake -D OUTPUT=<file> -P Run.cmake -- <program> <argument>...
#
# Runs a program and writes its standard output to a file. Its standard error is shown if it fails.
include(${CMAKE_CURRENT_LIST_DIR}/../Arguments.cmake)
quoted_arguments(command)
cmake_language(EVAL CODE
               "execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE printed ERROR_VARIABLE said)")
if(NOT code STREQUAL 0)
  message(FATAL_ERROR "${command} ended with ${code}:\n${said}")
endif()
file(WRITE ${OUTPUT} "${printed}")
