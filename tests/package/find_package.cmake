# find_package(attn) in an installed tree.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(binary ${WORK_DIR}/find_package)
build_and_test(${CMAKE_CURRENT_LIST_DIR}/consumer ${binary} Release -D CMAKE_PREFIX_PATH=${prefix}
               -D "CONSUMER_WARNINGS=${WARNINGS}")
only_eigen_and_threads(${binary})
