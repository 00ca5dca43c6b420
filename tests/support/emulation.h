// Whether the tests run with the matrix unit emulated.
#pragma once

#include <cstdlib>

namespace attn::test {

/// Whether the environment variable ATTN_SOFTWARE_TILES requests it. The library then runs the kernels for the matrix
/// unit on tiles in software (see software_tiles.cpp). They need AVX-512, or AVX2 if tests are compiled with
/// ATTN_SOFTWARE_AVX512.
inline bool emulates_matrix_unit() {
  const char* const value = std::getenv("ATTN_SOFTWARE_TILES");
  return value != nullptr && *value != '\0';
}

}  // namespace attn::test
