// Linked to every test binary.
#include <gtest/gtest.h>

#include "attn/isa.h"

namespace attn::test {
namespace {

class SoftwareTilesCanRun : public ::testing::Environment {
  void SetUp() override {
    if (attn::detail::software_tiles() && !attn::available(attn::Isa::amx)) {
      // In the words by which ctest knows skipped tests: GoogleTest itself reports a single one as passed.
      GTEST_SKIP() << "[  SKIPPED ] ATTN_SOFTWARE_TILES: the kernels for the matrix unit need AVX-512 beside it";
    }
  }
};

[[maybe_unused]] const ::testing::Environment* const added =
    ::testing::AddGlobalTestEnvironment(new SoftwareTilesCanRun);

}  // namespace
}  // namespace attn::test
