# cmake -D EXIT=<code> -D OUT=<regex> -D ERR=<regex> -P CheckRun.cmake -- <program> <argument>...
#
# Runs the program without input. Fails unless it exits with the code (default 0), its standard output matches OUT and
# its standard error matches ERR. An empty OUT allows anything, an empty ERR nothing.

include(${CMAKE_CURRENT_LIST_DIR}/Arguments.cmake)
quoted_arguments(command)
if(NOT command)
  message(FATAL_ERROR "no program was given")
endif()
if(WIN32)
  set(no_input NUL)
else()
  set(no_input /dev/null)
endif()
cmake_language(EVAL CODE "execute_process(COMMAND ${command}
  INPUT_FILE ${no_input} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err ENCODING NONE)")

set(faults "")
if("${EXIT}" STREQUAL "")
  set(EXIT 0)
endif()
if(NOT code STREQUAL EXIT)
  string(APPEND faults "exit code ${code}, not ${EXIT}\n")
endif()
if(OUT AND NOT out MATCHES "${OUT}")
  string(APPEND faults "standard output does not match ${OUT}\n")
endif()
if(ERR AND NOT err MATCHES "${ERR}")
  string(APPEND faults "standard error does not match ${ERR}\n")
elseif(NOT ERR AND NOT err STREQUAL "")
  string(APPEND faults "standard error is not empty\n")
endif()
message("${out}${err}")
if(faults)
  message(FATAL_ERROR "${faults}")
endif()
