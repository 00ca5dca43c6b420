# attn::compiled: attn::attn with the loops and kernels compiled once into a static library. Link it instead of
# attn::attn; nothing else changes. It is built in the project that links it, with that project's flags, and only if
# something links it.
include_guard(DIRECTORY)

# attn_add_compiled(<target> <scalar>...): adds such a library for float, double, long_double. Each scalar is a separate
# unit. The library is position-independent and its symbols are hidden, so that a shared library that links it neither
# exports it nor calls the attn of another library or of the program.
function(attn_add_compiled target)
  set(units "")
  foreach(scalar IN LISTS ARGN)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}_${scalar}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include <attn/instantiate_${scalar}.h>\n")
    list(APPEND units ${unit})
  endforeach()
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${units})
  target_link_libraries(${target} PUBLIC attn::attn)
  # Units without this definition compile their own loops and kernels, as with attn::attn.
  target_compile_definitions(${target} PUBLIC ATTN_EXTERN_TEMPLATES)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endfunction()

if(NOT TARGET attn::compiled)
  attn_add_compiled(attn_compiled float double long_double)
  add_library(attn::compiled ALIAS attn_compiled)
endif()
