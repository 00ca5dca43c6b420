# What only this project's own programs get: warnings, strict C++, no extensions. Nothing here reaches a consumer.

# Kept as a list of its own: the package tests compile a consumer with the same warnings.
set(ATTN_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wsign-conversion)

add_library(attn_development INTERFACE)
target_link_libraries(attn_development INTERFACE attn::attn)
target_compile_options(attn_development INTERFACE ${ATTN_WARNINGS} $<$<BOOL:${ATTN_WERROR}>:-Werror>)
# From 128 MiB on g++ searches its heap for garbage again and again. The heap includes what has been precompiled, so that
# this took a third of the time of a small test's unit. Few units ever have 1 GB.
target_compile_options(attn_development INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)

# attn_program(<name> <source>...) makes one program of the project.
function(attn_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE attn_development)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()
