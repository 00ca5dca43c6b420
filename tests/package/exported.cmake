# A library that links attn::attn, is installed, and is used by a third project. attn is an installed package, or a
# subdirectory with ATTN_INSTALL, which installs it with the library.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
file(REMOVE_RECURSE ${WORK_DIR}/exported)

# export_and_use(<name> <prefix where attn gets installed> <option>...)
function(export_and_use name attn_prefix)
  set(work ${WORK_DIR}/exported/${name})
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/exported -B ${work}/library -G ${GENERATOR}
      -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Debug -D Eigen3_DIR=${EIGEN_DIR} ${ARGN})
  run(${CMAKE_COMMAND} --build ${work}/library)
  run(${CMAKE_COMMAND} --install ${work}/library --prefix ${work}/prefix)
  build_and_test(${CMAKE_CURRENT_LIST_DIR}/exported/user ${work}/user Debug
                 -D attn_DIR=${attn_prefix}/share/cmake/attn -D tokens_DIR=${work}/prefix/lib/cmake/tokens)
endfunction()

export_and_use(package ${prefix} -D CMAKE_PREFIX_PATH=${prefix})
export_and_use(subdirectory ${WORK_DIR}/exported/subdirectory/prefix -D ATTN_SOURCE_DIR=${SOURCE_DIR})
