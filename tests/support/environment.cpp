// Linked to every test binary.
#include <gtest/gtest.h>

#include "attn/isa.h"

namespace attn::test {
namespace {

class SoftwareTilesCanRun : public ::testing::Environment {
  void SetUp() override {
    if (attn::detail::software_tiles() && !attn::available(attn::Isa::amx))
      GTEST_SKIP()
          << "ATTN_SOFTWARE_TILES: this processor has no AVX-512, whose vectors these kernels use beside tiles";
  }
};

[[maybe_unused]] const ::testing::Environment* const added =
    ::testing::AddGlobalTestEnvironment(new SoftwareTilesCanRun);

}  // namespace
}  // namespace attn::test
