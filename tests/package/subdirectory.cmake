# The sources through FetchContent, which calls add_subdirectory(). The consumer's warnings apply to our headers, which
# are not system headers here.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(binary ${WORK_DIR}/subdirectory)
build_and_test(${CMAKE_CURRENT_LIST_DIR}/consumer ${binary} Release -D ATTN_SOURCE_DIR=${SOURCE_DIR}
               -D "CONSUMER_WARNINGS=${WARNINGS}")
only_eigen_and_threads(${binary})
