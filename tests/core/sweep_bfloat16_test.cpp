// Both paths in Eigen::bfloat16 against the oracle.
#include "support/sweep.h"

TEST(SweepBfloat16, EveryRowAtTinySizes) { attn::test::sweep_every_row_at_tiny_sizes<Eigen::bfloat16>(); }
TEST(SweepBfloat16, EveryModAtEveryTileEdge) { attn::test::sweep_every_mod_at_every_tile_edge<Eigen::bfloat16>(); }
TEST(SweepBfloat16, EveryDim) { attn::test::sweep_every_dim<Eigen::bfloat16>(); }
TEST(SweepBfloat16, GroupedSingleQueries) { attn::test::sweep_grouped_single_queries<Eigen::bfloat16>(); }
