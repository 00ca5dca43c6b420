# attn::mpi: attn::attn with MPI's C interface, for programs that include attn/mpi.h. Other targets do not depend on
# MPI.
include_guard(DIRECTORY)

if(NOT TARGET MPI::MPI_CXX)
  set(MPI_CXX_SKIP_MPICXX ON)  # the header needs no C++ bindings, which old MPIs would link
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set_target_properties(MPI::MPI_CXX PROPERTIES IMPORTED_GLOBAL TRUE)  # attn::mpi may be linked in other folders
  endif()
endif()
# CMake's FindMPI creates its targets even if there is no MPI. The variable is not defined if another folder found MPI.
if(TARGET MPI::MPI_CXX AND (MPI_CXX_FOUND OR NOT DEFINED MPI_CXX_FOUND) AND NOT TARGET attn::mpi)
  add_library(attn::mpi INTERFACE IMPORTED GLOBAL)
  target_link_libraries(attn::mpi INTERFACE attn::attn MPI::MPI_CXX)
endif()
