# Compiles through ccache, if it is installed, so that units compiled before, in this clone or another, are reused. An
# existing compiler launcher is kept.
find_program(ATTN_CCACHE ccache)
mark_as_advanced(ATTN_CCACHE)
if(ATTN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Test units include a precompiled header, which ccache supports only with this sloppiness.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_SLOPPINESS=pch_defines,time_macros ${ATTN_CCACHE})
endif()

# attn_precompiled(<target>...): makes targets build or use a precompiled header in a way that ccache supports.
function(attn_precompiled)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                                             "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  endforeach()
endfunction()
