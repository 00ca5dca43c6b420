// Both paths in Eigen::half against the oracle.
#include "support/sweep.h"

TEST(SweepHalf, EveryRowAtTinySizes) { attn::test::sweep_every_row_at_tiny_sizes<Eigen::half>(); }
TEST(SweepHalf, EveryModAtEveryTileEdge) { attn::test::sweep_every_mod_at_every_tile_edge<Eigen::half>(); }
TEST(SweepHalf, EveryDim) { attn::test::sweep_every_dim<Eigen::half>(); }
TEST(SweepHalf, GroupedSingleQueries) { attn::test::sweep_grouped_single_queries<Eigen::half>(); }
