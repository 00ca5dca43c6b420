# train_hybrid without its main(), as a library that the tests link too. Reading texts and drawing characters are
# train_gpt's.
include_guard(GLOBAL)

include(${CMAKE_CURRENT_LIST_DIR}/../train_gpt/library.cmake)

add_library(
  attn_train_hybrid STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/continue_text.cpp
  ${CMAKE_CURRENT_LIST_DIR}/model_file.cpp
  ${CMAKE_CURRENT_LIST_DIR}/hybrid_options.cpp
  ${CMAKE_CURRENT_LIST_DIR}/train.cpp)
target_include_directories(attn_train_hybrid PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attn_train_hybrid PUBLIC attn_train_gpt)
set_target_properties(attn_train_hybrid PROPERTIES CXX_EXTENSIONS OFF)
attn_nn_precompiled(attn_train_hybrid)
