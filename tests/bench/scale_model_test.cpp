// The scaling model: consequences of its rules that need no measurement.
#include "scale_model.h"

#include <gtest/gtest.h>

namespace bench {
namespace {

constexpr double kEps = 1e-9;
const SelfAttention kFull{.len = 4096, .heads = 8, .kv_heads = 2, .dim = 64};
const SelfAttention kCausal{.len = 4096, .heads = 8, .kv_heads = 2, .dim = 64, .causal = true};
const Cluster kNoNetwork{1e11, 0, 1e300};

TEST(ScaleModel, OneRankComputesEverything) {
  for (const Distribution distribution : {Distribution::contiguous, Distribution::zigzag, Distribution::by_heads}) {
    const Prediction p = predict(kFull, distribution, 1, kNoNetwork);
    EXPECT_NEAR(p.seconds, 4.0 * 4096 * 4096 * 64 * 8 / 1e11, kEps);
    EXPECT_NEAR(p.efficiency, 1, kEps);
    EXPECT_EQ(p.bytes_sent, 0);
    EXPECT_NEAR(predict(kCausal, distribution, 1, kNoNetwork).efficiency, 1, kEps);
  }
}

TEST(ScaleModel, ZigzagBalancesCausalMasks) {
  for (const int ranks : {2, 4, 8, 64}) {
    EXPECT_NEAR(predict(kCausal, Distribution::zigzag, ranks, kNoNetwork).efficiency, 1, 1e-3) << ranks;
    // The last rank has 2 P - 1 of the P * P half blocks in total.
    EXPECT_NEAR(predict(kCausal, Distribution::contiguous, ranks, kNoNetwork).efficiency, ranks / (2.0 * ranks - 1),
                1e-2)
        << ranks;
    EXPECT_NEAR(predict(kFull, Distribution::contiguous, ranks, kNoNetwork).efficiency, 1, kEps) << ranks;
  }
}

TEST(ScaleModel, CountsBytes) {
  // All keys and values go to all other ranks; under a causal mask and without zigzag only to later ranks.
  const double keys = 2.0 * 4096 * 2 * 64 * 4;
  EXPECT_NEAR(predict(kFull, Distribution::zigzag, 4, kNoNetwork).bytes_sent, 3 * keys, kEps);
  EXPECT_NEAR(predict(kCausal, Distribution::contiguous, 4, kNoNetwork).bytes_sent, 1.5 * keys, kEps);
  EXPECT_NEAR(predict(kCausal, Distribution::zigzag, 4, kNoNetwork).bytes_sent, 2.25 * keys, kEps);
  SelfAttention backward = kFull;
  backward.backward = true;
  EXPECT_NEAR(predict(backward, Distribution::zigzag, 4, kNoNetwork).bytes_sent, 6 * keys, kEps);
  // Each element of query and output is sent once, and keys to the ranks that share them.
  const SelfAttention even{.len = 4096, .heads = 8, .kv_heads = 8, .dim = 64};
  EXPECT_NEAR(predict(even, Distribution::by_heads, 4, kNoNetwork).bytes_sent, 0.75 * 4 * 4096.0 * 8 * 64 * 4, kEps);
}

TEST(ScaleModel, FastNetworksAreHiddenAndSlowOnesAreNot) {
  const double computing = predict(kFull, Distribution::zigzag, 2, kNoNetwork).seconds;
  const double keys = 2048.0 * 2 * 2 * 64 * 4;  // bytes of a rank's keys and values
  // Sending a parcel, half of a rank's keys, takes as long as computing one: the second parcel is sent while the first
  // is computed.
  const Cluster just{1e11, 0, (keys / 2) / (computing / 4)};
  EXPECT_NEAR(predict(kFull, Distribution::zigzag, 2, just).exposed, 0, kEps);
  const Cluster slow{1e11, 0, just.bandwidth / 10};
  const Prediction p = predict(kFull, Distribution::zigzag, 2, slow);
  EXPECT_NEAR(p.seconds, 2 * (keys / 2) / slow.bandwidth + computing / 4, kEps);
  EXPECT_NEAR(p.exposed, p.seconds - computing, kEps);
}

TEST(ScaleModel, EachParcelAddsLatency) {
  const Cluster far{1e11, 1, 1e300};
  // Four exchanges, then two parcels, each with a latency of 1 s; computing takes far less.
  const Prediction p = predict(kFull, Distribution::zigzag, 2, far);
  EXPECT_NEAR(p.seconds, 4 + 2 + predict(kFull, Distribution::zigzag, 2, kNoNetwork).seconds / 4, kEps);
}

}  // namespace
}  // namespace bench
