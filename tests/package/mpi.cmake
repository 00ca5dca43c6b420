# find_package(attn COMPONENTS mpi) in an installed tree, with MPI and without.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(source ${CMAKE_CURRENT_LIST_DIR}/mpi_consumer)

set(binary ${WORK_DIR}/no_mpi)
file(REMOVE_RECURSE ${binary})
set(hide_mpi -D MPI_SKIP_COMPILER_WRAPPER=ON -D MPI_SKIP_GUESSING=ON -D MPI_ASSUME_NO_BUILTIN_MPI=ON)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_LIBDIR=${binary} ${CMAKE_COMMAND} -S ${source} -B ${binary} -G
                        ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER} -D Eigen3_DIR=${EIGEN_DIR} -D
                        CMAKE_PREFIX_PATH=${prefix} ${hide_mpi}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
string(REGEX REPLACE "[ \n]+" " " said "${errors}")  # CMake breaks lines
set(expected "attn's component mpi needs MPI 3, and CMake found none: install libopenmpi-dev or libmpich-dev")
string(FIND "${said}" "${expected}" at)
if(result EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "without MPI (${result}) CMake must say: ${expected}\nand says: ${output}\n${errors}")
endif()

find_program(mpicxx NAMES mpicxx mpic++ mpicxx.openmpi mpicxx.mpich)
if(NOT mpicxx)
  message("skipped: there is no MPI here, so only the error without MPI was tested (Debian: libopenmpi-dev)")
  return()
endif()
build_and_test(${source} ${WORK_DIR}/mpi Release -D CMAKE_PREFIX_PATH=${prefix} -D "CONSUMER_WARNINGS=${WARNINGS}")
