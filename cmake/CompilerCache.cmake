# ccache, where it is installed, for who works on the project: what was compiled before, in this clone or another, is taken
# from it. A launcher that was named already stays.
find_program(ATTN_CCACHE ccache)
mark_as_advanced(ATTN_CCACHE)
if(ATTN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Units of the tests include a precompiled header, which ccache takes only with this sloppiness.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_SLOPPINESS=pch_defines,time_macros ${ATTN_CCACHE})
endif()

# attn_precompiled(<target>...): these make or use a precompiled header in a way that ccache can follow.
function(attn_precompiled)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                                             "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  endforeach()
endfunction()
