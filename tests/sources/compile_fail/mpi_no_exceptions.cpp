// with: -fno-exceptions
// expect: attn/mpi.h needs exceptions, RTTI and threads: compile without -fno-exceptions, -fno-rtti and ATTN_NO_THREADS
#include "attn/mpi.h"
