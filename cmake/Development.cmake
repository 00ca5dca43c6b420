# Settings for the project's own programs: warnings, strict C++, no extensions. Nothing here reaches a consumer.

# A separate list, because the package tests compile a consumer with the same warnings.
set(ATTN_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wsign-conversion)

add_library(attn_development INTERFACE)
target_link_libraries(attn_development INTERFACE attn::attn)
target_compile_options(attn_development INTERFACE ${ATTN_WARNINGS} $<$<BOOL:${ATTN_WERROR}>:-Werror>)
# By default, g++ collects garbage repeatedly once its heap exceeds 128 MiB. The heap includes precompiled headers, so
# this took a third of the compile time of a small test. Few units reach the limit of 1 GB set here.
target_compile_options(attn_development INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)

# attn_program(<name> <source>...): adds a program of the project.
function(attn_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE attn_development)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()
