# nn: the parts of a Transformer besides attention. attn_nn holds its layers for float; tests compile them for double
# too.
include_guard(GLOBAL)

find_package(nlohmann_json REQUIRED)

set(ATTN_NN_DIR ${CMAKE_CURRENT_LIST_DIR})

# The loops and kernels, compiled once; shared with the tests if they are built.
if(TARGET attn_test_loops)
  set(loops attn_test_loops)
else()
  attn_add_compiled(attn_nn_loops float)
  target_link_libraries(attn_nn_loops PUBLIC attn_development)
  set(loops attn_nn_loops)
endif()

add_library(
  attn_nn_base STATIC EXCLUDE_FROM_ALL
  ${ATTN_NN_DIR}/new_file.cpp
  ${ATTN_NN_DIR}/printable.cpp
  ${ATTN_NN_DIR}/safetensors.cpp
  ${ATTN_NN_DIR}/threads.cpp
  ${ATTN_NN_DIR}/../transliterate/utf8.cpp)
target_include_directories(attn_nn_base PUBLIC ${ATTN_NN_DIR})
target_link_libraries(attn_nn_base PUBLIC ${loops} PRIVATE nlohmann_json::nlohmann_json)
set_target_properties(attn_nn_base PROPERTIES CXX_EXTENSIONS OFF)

# Most units spent two thirds of their compile time on reading attn's and Eigen's headers.
target_precompile_headers(attn_nn_base PRIVATE <attn/attn.h>)
attn_precompiled(attn_nn_base)
# attn_nn_precompiled(<target>): lets a library with the flags of attn_nn_base reuse its precompiled headers.
function(attn_nn_precompiled target)
  target_precompile_headers(${target} REUSE_FROM attn_nn_base)
  attn_precompiled(${target})
endfunction()

# attn_nn_library(<name> <scalar> <source>...)
function(attn_nn_library name scalar)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/)
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${ARGN})
  target_link_libraries(${name} PUBLIC attn_nn_base)
  target_compile_definitions(${name} PRIVATE NN_SCALAR=${scalar})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  attn_nn_precompiled(${name})
endfunction()

set(ATTN_NN_MODELS encoder.cpp gpt.cpp hybrid.cpp transformer.cpp)
set(ATTN_NN_SOURCES
    ${ATTN_NN_MODELS}
    activation.cpp
    adamw.cpp
    attention.cpp
    cross_entropy.cpp
    delta_net.cpp
    dropout.cpp
    embedding.cpp
    generation.cpp
    hybrid_layers.cpp
    layers.cpp
    linear.cpp
    norm.cpp
    stacks.cpp
    tensor.cpp)
attn_nn_library(attn_nn float ${ATTN_NN_SOURCES})
