# speculative without its main(), as a library that the tests link too.
include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/../tinystories/library.cmake)

add_library(attn_speculative STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/drafter.cpp
                                                     ${CMAKE_CURRENT_LIST_DIR}/speculate.cpp)
target_include_directories(attn_speculative PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attn_speculative PUBLIC attn_tinystories)
set_target_properties(attn_speculative PROPERTIES CXX_EXTENSIONS OFF)
