# transliterate without its main(), as a library that the tests link too.
include_guard(GLOBAL)

add_library(
  attn_transliterate STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/../nn/printable.cpp
  ${CMAKE_CURRENT_LIST_DIR}/decode.cpp
  ${CMAKE_CURRENT_LIST_DIR}/heat_map.cpp
  ${CMAKE_CURRENT_LIST_DIR}/layers.cpp
  ${CMAKE_CURRENT_LIST_DIR}/model_file.cpp
  ${CMAKE_CURRENT_LIST_DIR}/transformer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/utf8.cpp
  ${CMAKE_CURRENT_LIST_DIR}/vocabulary.cpp)
target_include_directories(attn_transliterate PUBLIC ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/../display)
target_link_libraries(attn_transliterate PUBLIC attn_development)
if(TARGET attn_test_loops)  # compiled already
  target_link_libraries(attn_transliterate PUBLIC attn_test_loops)
endif()
set_target_properties(attn_transliterate PROPERTIES CXX_EXTENSIONS OFF)
if(COMMAND attn_nn_precompiled)  # which has the same flags
  attn_nn_precompiled(attn_transliterate)
endif()
