# A library that links attn::attn, is installed itself, and is used by a third project.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(library_prefix ${WORK_DIR}/exported/prefix)
set(library ${WORK_DIR}/exported/library)
file(REMOVE_RECURSE ${WORK_DIR}/exported)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/exported -B ${library} -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Debug -D Eigen3_DIR=${EIGEN_DIR}
    -D CMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${library})
run(${CMAKE_COMMAND} --install ${library} --prefix ${library_prefix})
build_and_test(${CMAKE_CURRENT_LIST_DIR}/exported/user ${WORK_DIR}/exported/user Debug
               -D attn_DIR=${prefix}/share/cmake/attn -D tokens_DIR=${library_prefix}/lib/cmake/tokens)
