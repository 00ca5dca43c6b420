# Common parts of the package tests: folders, and steps that stop at the first failure.
cmake_minimum_required(VERSION 3.22)

set(prefix ${WORK_DIR}/moved/prefix)

# run(<command>...): the output is in `output`.
macro(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGN}\n${output}\n${errors}")
  endif()
endmacro()

# build_and_test(<source> <binary> <build type> <cache entry>...): without optimization, which took two thirds of a
# consumer's compile time. The tests cover finding, compiling and linking.
macro(build_and_test source binary type)
  file(REMOVE_RECURSE ${binary})
  run(${CMAKE_COMMAND} -S ${source} -B ${binary} -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
      -D CMAKE_BUILD_TYPE=${type} -D CMAKE_CXX_FLAGS_RELEASE=-O0 -D Eigen3_DIR=${EIGEN_DIR} ${ARGN})
  run(${CMAKE_COMMAND} --build ${binary})
  run(${CMAKE_CTEST_COMMAND} --test-dir ${binary} --output-on-failure)
endmacro()

# only_eigen_and_threads(<binary>): checks that, for the consumer built there, attn::attn brought in only Eigen and
# threads.
macro(only_eigen_and_threads binary)
  file(READ ${binary}/brings.txt brings)
  set(expected "options: \ndefinitions: \nlink options: \nlinks: Eigen3::Eigen;Threads::Threads\n")
  if(NOT brings STREQUAL expected)
    message(FATAL_ERROR "attn::attn must bring\n${expected}but brings\n${brings}")
  endif()
endmacro()
