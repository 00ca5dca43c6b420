// Global test environment, linked into every test binary.
#include <gtest/gtest.h>

#include "attn/isa.h"
#include "emulation.h"

namespace attn::test {
namespace {

class SoftwareTilesCanRun : public ::testing::Environment {
  void SetUp() override {
    if (emulates_matrix_unit() && !attn::available(attn::Isa::amx)) {
      // Contains the words by which ctest detects skipped tests: GoogleTest itself reports a single skipped test as
      // passed.
      GTEST_SKIP() << "[  SKIPPED ] ATTN_SOFTWARE_TILES: the matrix unit's kernels also need "
                      "AVX-512, or -DATTN_TEST_SOFTWARE_SETS=ON";
    }
  }
};

[[maybe_unused]] const ::testing::Environment* const added =
    ::testing::AddGlobalTestEnvironment(new SoftwareTilesCanRun);

}  // namespace
}  // namespace attn::test
