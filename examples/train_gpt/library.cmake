# train_gpt without its main(), as a library that the tests link too.
include_guard(GLOBAL)

include(${CMAKE_CURRENT_LIST_DIR}/../nn/library.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../training/library.cmake)

add_library(
  attn_train_gpt STATIC EXCLUDE_FROM_ALL
  ${CMAKE_CURRENT_LIST_DIR}/checkpoint.cpp
  ${CMAKE_CURRENT_LIST_DIR}/generate.cpp
  ${CMAKE_CURRENT_LIST_DIR}/options.cpp
  ${CMAKE_CURRENT_LIST_DIR}/run.cpp
  ${CMAKE_CURRENT_LIST_DIR}/run_report.cpp
  ${CMAKE_CURRENT_LIST_DIR}/text.cpp
  ${CMAKE_CURRENT_LIST_DIR}/trainer.cpp
  ${CMAKE_CURRENT_LIST_DIR}/vocabulary.cpp)
target_include_directories(attn_train_gpt PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(attn_train_gpt PUBLIC attn_nn attn_training)
set_target_properties(attn_train_gpt PROPERTIES CXX_EXTENSIONS OFF)
attn_nn_precompiled(attn_train_gpt)
attn_embed(attn_train_gpt kOwnText ${CMAKE_CURRENT_LIST_DIR}/own_text.txt)

# Communication between processes is a separate library: nothing else depends on MPI.
if(NOT CMAKE_CROSSCOMPILING)
  include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/attnMpi.cmake)
endif()
add_library(attn_train_gpt_no_ranks STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/no_mpi_ranks.cpp)
target_link_libraries(attn_train_gpt_no_ranks PUBLIC attn_train_gpt)
set_target_properties(attn_train_gpt_no_ranks PROPERTIES CXX_EXTENSIONS OFF)
if(TARGET attn::mpi)
  add_library(attn_train_gpt_ranks STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/mpi_ranks.cpp)
  target_include_directories(attn_train_gpt_ranks PUBLIC ${CMAKE_CURRENT_LIST_DIR}/../ranks)
  target_link_libraries(attn_train_gpt_ranks PUBLIC attn::mpi attn_train_gpt)
  set_target_properties(attn_train_gpt_ranks PROPERTIES CXX_EXTENSIONS OFF)
else()
  add_library(attn_train_gpt_ranks ALIAS attn_train_gpt_no_ranks)
endif()
