# train_translation without its main(), as a library that the tests link too.
include_guard(GLOBAL)

include(${CMAKE_CURRENT_LIST_DIR}/../nn/library.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../training/library.cmake)

add_library(
  attn_train_translation STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/attention_map.cpp
  ${CMAKE_CURRENT_LIST_DIR}/batches.cpp
  ${CMAKE_CURRENT_LIST_DIR}/beam_search.cpp
  ${CMAKE_CURRENT_LIST_DIR}/characters.cpp
  ${CMAKE_CURRENT_LIST_DIR}/chrf.cpp
  ${CMAKE_CURRENT_LIST_DIR}/merges.cpp
  ${CMAKE_CURRENT_LIST_DIR}/pairs.cpp
  ${CMAKE_CURRENT_LIST_DIR}/pieces.cpp
  ${CMAKE_CURRENT_LIST_DIR}/trainer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/translate.cpp
  ${CMAKE_CURRENT_LIST_DIR}/translator.cpp
  ${CMAKE_CURRENT_LIST_DIR}/translator_file.cpp)
target_include_directories(attn_train_translation PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attn_train_translation PUBLIC attn_nn attn_training)
set_target_properties(attn_train_translation PROPERTIES CXX_EXTENSIONS OFF)
attn_nn_precompiled(attn_train_translation)
attn_embed(attn_train_translation kPhraseBook ${CMAKE_CURRENT_LIST_DIR}/phrase_book.tsv)
