# cmake -D COMPILER=<path> -D FLAGS=<list> -D SOURCE=<file> -D PROGRAM=<path> -P check.cmake
#
# Compiles the source, runs the program and removes it. Fails if the compiler fails or if the program does not return 0.
execute_process(COMMAND ${COMPILER} ${FLAGS} ${SOURCE} -o ${PROGRAM} RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${COMPILER} ${FLAGS}: exit code ${code}")
endif()
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE code)
file(REMOVE ${PROGRAM})
if(NOT code EQUAL 0)
  message(FATAL_ERROR "compiled with ${COMPILER} ${FLAGS}, the program returns ${code}")
endif()
