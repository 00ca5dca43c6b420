# cmake -D CHECK=<a check of a tree> [-D SOUND=<tree>] -D WORK_DIR=<folder> [-D FILE=<file> -D TEXT=<text> -D BY=<text>]
#       -D EXPECT=<words> -P self_test.cmake
#
# Replaces TEXT in FILE of a copy of the tree SOUND, by default sound/ next to this file. The check must then fail with
# the expected words, or pass if none are expected.
cmake_minimum_required(VERSION 3.22)

if(NOT SOUND)
  set(SOUND ${CMAKE_CURRENT_LIST_DIR}/sound)
endif()
file(REMOVE_RECURSE ${WORK_DIR})
file(COPY ${SOUND}/ DESTINATION ${WORK_DIR})
if(FILE)
  file(READ ${WORK_DIR}/${FILE} before)
  string(REPLACE "${TEXT}" "${BY}" after "${before}")
  if(after STREQUAL before)
    message(FATAL_ERROR "${FILE} has no `${TEXT}` to replace")
  endif()
  file(WRITE ${WORK_DIR}/${FILE} "${after}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK_DIR} -P ${CHECK}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(EXPECT STREQUAL "")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "a sound tree was refused: ${output}")
  endif()
  return()
endif()
string(REGEX MATCHALL "\n    [^\n]+" faults "${output}")
if(result EQUAL 0 OR NOT faults STREQUAL "\n    ${EXPECT}")
  message(FATAL_ERROR "expected the fault `${EXPECT}` alone, got exit code ${result} and: ${output}")
endif()
