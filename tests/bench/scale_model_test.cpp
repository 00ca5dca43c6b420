// The model of scale: what follows from its rules without any measurement.
#include "scale_model.h"

#include <gtest/gtest.h>

namespace bench {
namespace {

constexpr double kEps = 1e-9;
const Text kText{.len = 4096, .heads = 8, .kv_heads = 2, .dim = 64};
const Text kCausal{.len = 4096, .heads = 8, .kv_heads = 2, .dim = 64, .causal = true};
const Cluster kNoNetwork{1e11, 0, 1e300};

TEST(ScaleModel, OneRankComputesAll) {
  for (const Way way : {Way::contiguous, Way::zigzag, Way::by_heads}) {
    const Prediction p = predict(kText, way, 1, kNoNetwork);
    EXPECT_NEAR(p.seconds, 4.0 * 4096 * 4096 * 64 * 8 / 1e11, kEps);
    EXPECT_NEAR(p.efficiency, 1, kEps);
    EXPECT_EQ(p.bytes_sent, 0);
    EXPECT_NEAR(predict(kCausal, way, 1, kNoNetwork).efficiency, 1, kEps);
  }
}

TEST(ScaleModel, ZigzagIsEvenWhereContiguousIsNot) {
  for (const int ranks : {2, 4, 8, 64}) {
    EXPECT_NEAR(predict(kCausal, Way::zigzag, ranks, kNoNetwork).efficiency, 1, 1e-3) << ranks;
    // The last rank has 2 P - 1 of the P * P halves of blocks that all have.
    EXPECT_NEAR(predict(kCausal, Way::contiguous, ranks, kNoNetwork).efficiency, ranks / (2.0 * ranks - 1), 1e-2)
        << ranks;
    EXPECT_NEAR(predict(kText, Way::contiguous, ranks, kNoNetwork).efficiency, 1, kEps) << ranks;
  }
}

TEST(ScaleModel, CountsBytes) {
  // All keys and values go to all other ranks; under a causal mask and without zigzag to those behind alone.
  const double keys = 2.0 * 4096 * 2 * 64 * 4;
  EXPECT_NEAR(predict(kText, Way::zigzag, 4, kNoNetwork).bytes_sent, 3 * keys, kEps);
  EXPECT_NEAR(predict(kCausal, Way::contiguous, 4, kNoNetwork).bytes_sent, 1.5 * keys, kEps);
  EXPECT_NEAR(predict(kCausal, Way::zigzag, 4, kNoNetwork).bytes_sent, 2.25 * keys, kEps);
  Text backward = kText;
  backward.backward = true;
  EXPECT_NEAR(predict(backward, Way::zigzag, 4, kNoNetwork).bytes_sent, 6 * keys, kEps);
  // Each number of query and output travels once, and keys to those ranks that share them.
  const Text even{.len = 4096, .heads = 8, .kv_heads = 8, .dim = 64};
  EXPECT_NEAR(predict(even, Way::by_heads, 4, kNoNetwork).bytes_sent, 0.75 * 4 * 4096.0 * 8 * 64 * 4, kEps);
}

TEST(ScaleModel, AFastNetworkIsHiddenAndASlowOneIsNot) {
  const double computing = predict(kText, Way::zigzag, 2, kNoNetwork).seconds;
  const double keys = 2048.0 * 2 * 2 * 64 * 4;  // of a rank
  // It takes as long to bring a parcel, half of a rank's keys, as to compute the shortest one: the second parcel, while
  // the first is computed.
  const Cluster just{1e11, 0, (keys / 2) / (computing / 4)};
  EXPECT_NEAR(predict(kText, Way::zigzag, 2, just).exposed, 0, kEps);
  const Cluster slow{1e11, 0, just.bandwidth / 10};
  const Prediction p = predict(kText, Way::zigzag, 2, slow);
  EXPECT_NEAR(p.seconds, 2 * (keys / 2) / slow.bandwidth + computing / 4, kEps);
  EXPECT_NEAR(p.exposed, p.seconds - computing, kEps);
}

TEST(ScaleModel, LatencyCountsForEachParcel) {
  const Cluster far{1e11, 1, 1e300};
  // Two parcels, and four exchanges before them; computing takes far less than a second.
  const Prediction p = predict(kText, Way::zigzag, 2, far);
  EXPECT_NEAR(p.seconds, 4 + 2 + predict(kText, Way::zigzag, 2, kNoNetwork).seconds / 4, kEps);
}

}  // namespace
}  // namespace bench
