# tinystories without its main(), as a library that the tests link too.
include_guard(GLOBAL)

add_library(
  attn_tinystories STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/binary_file.cpp
  ${CMAKE_CURRENT_LIST_DIR}/checkpoint.cpp
  ${CMAKE_CURRENT_LIST_DIR}/generate.cpp
  ${CMAKE_CURRENT_LIST_DIR}/layers.cpp
  ${CMAKE_CURRENT_LIST_DIR}/perplexity.cpp
  ${CMAKE_CURRENT_LIST_DIR}/same_bits.cpp
  ${CMAKE_CURRENT_LIST_DIR}/sampler.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tokenizer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/transformer.cpp)
target_include_directories(attn_tinystories PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attn_tinystories PUBLIC attn_development)
if(TARGET attn_test_loops)  # compiled already
  target_link_libraries(attn_tinystories PUBLIC attn_test_loops)
endif()
set_target_properties(attn_tinystories PROPERTIES CXX_EXTENSIONS OFF)
if(COMMAND attn_nn_precompiled)  # which has the same flags
  attn_nn_precompiled(attn_tinystories)
endif()
