# cmake -D OBJECT=<file> -D WANT=<regex> -D REFUSE=<regex> [-D NM=<path>] -P CheckSymbols.cmake
#
# Fails if a function in the object file matches REFUSE, or if none matches WANT. So a template that is instantiated by
# accident, and that every user would then compile, is found.
if(NOT NM)
  set(NM nm)
endif()
execute_process(COMMAND ${NM} -C ${OBJECT} OUTPUT_VARIABLE symbols RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${NM} ${OBJECT}: exit code ${code}")
endif()
if(NOT symbols MATCHES "${WANT}")
  message(FATAL_ERROR "no symbol of ${OBJECT} matches ${WANT}")
endif()
if(symbols MATCHES "[^\n]*(${REFUSE})[^\n]*")
  message(FATAL_ERROR "a symbol of ${OBJECT} matches ${REFUSE}: ${CMAKE_MATCH_0}")
endif()
