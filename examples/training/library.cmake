# training: the code that the training programs share.
include_guard(GLOBAL)

include(${CMAKE_CURRENT_LIST_DIR}/../nn/library.cmake)

set(ATTN_TRAINING_DIR ${CMAKE_CURRENT_LIST_DIR})

# attn_embed(<target> <name> <file>): embeds the text of a file as `extern const std::string_view <name>` in namespace
# training.
function(attn_embed target name file)
  cmake_path(GET file FILENAME source)
  file(READ ${file} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embedded.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
endfunction()

add_library(
  attn_training STATIC EXCLUDE_FROM_ALL
  ${ATTN_TRAINING_DIR}/files.cpp
  ${ATTN_TRAINING_DIR}/interrupt.cpp
  ${ATTN_TRAINING_DIR}/loss_curve.cpp
  ${ATTN_TRAINING_DIR}/progress.cpp
  ${ATTN_TRAINING_DIR}/report.cpp)
target_include_directories(attn_training PUBLIC ${ATTN_TRAINING_DIR} ${ATTN_TRAINING_DIR}/../display)
target_link_libraries(attn_training PUBLIC attn_nn_base PRIVATE nlohmann_json::nlohmann_json)
set_target_properties(attn_training PROPERTIES CXX_EXTENSIONS OFF)
attn_nn_precompiled(attn_training)
attn_embed(attn_training kReportStyle ${ATTN_TRAINING_DIR}/report.css)
attn_embed(attn_training kReportScript ${ATTN_TRAINING_DIR}/report.js)

# Sets a variable to the folder in which an example looks for its text: data/ of the clone, or that of ATTN_SHARED_DIR
# if only that has the file.
function(attn_data_folder variable folder file)
  set(found ${PROJECT_SOURCE_DIR}/data/${folder})
  if(NOT EXISTS ${found}/${file} AND EXISTS ${ATTN_SHARED_DIR}/data/${folder}/${file})
    set(found ${ATTN_SHARED_DIR}/data/${folder})
  endif()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
