# The sources by FetchContent, and so by add_subdirectory(): here the consumer's warnings look into our headers, which are no system headers.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(binary ${WORK_DIR}/subdirectory)
build_and_test(${CMAKE_CURRENT_LIST_DIR}/consumer ${binary} Release -D ATTN_SOURCE_DIR=${SOURCE_DIR}
               -D "CONSUMER_WARNINGS=${WARNINGS}")
only_eigen_and_threads(${binary})
