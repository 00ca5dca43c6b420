# cmake -D CHECK=<CheckFloors.cmake> -D INCLUDE_DIR=<tree> -D EXPECT=<words> -P self_test.cmake
#
# The check must fail with the expected words, or pass if none are expected.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${CMAKE_COMMAND} -D INCLUDE_DIR=${INCLUDE_DIR} -P ${CHECK}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(EXPECT STREQUAL "")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "a sound tree was refused: ${output}")
  endif()
  return()
endif()
string(FIND "${output}" "${EXPECT}" found)
if(result EQUAL 0 OR found EQUAL -1)
  message(FATAL_ERROR "expected a failure with the words `${EXPECT}`, got exit code ${result} and: ${output}")
endif()
