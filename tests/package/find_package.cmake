# find_package(attn) in an installed tree.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(binary ${WORK_DIR}/find_package)
build_and_test(${CMAKE_CURRENT_LIST_DIR}/consumer ${binary} Release -D CMAKE_PREFIX_PATH=${prefix}
               -D "CONSUMER_WARNINGS=${WARNINGS}" -D CONSUMER_COMPILED=ON)
only_eigen_and_threads(${binary})

# Programs that link attn::compiled get the kernels from the library.
execute_process(COMMAND nm -C ${binary}/CMakeFiles/first.dir/main.cpp.o OUTPUT_VARIABLE symbols RESULT_VARIABLE result)
if(result EQUAL 0 AND symbols MATCHES "[TWV] [^\n]*TileKernels[^\n]*")
  message(FATAL_ERROR "a program that links attn::compiled compiled its own kernels: ${CMAKE_MATCH_0}")
endif()
if(NOT EXISTS ${binary}/libattn_compiled.a)
  message(FATAL_ERROR "${binary}/libattn_compiled.a was not built")
endif()
