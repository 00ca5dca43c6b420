// Both paths in float against the oracle.
#include "support/sweep.h"

TEST(SweepFloat, EveryRowAtTinySizes) { attn::test::sweep_every_row_at_tiny_sizes<float>(); }
TEST(SweepFloat, EveryModAtEveryTileEdge) { attn::test::sweep_every_mod_at_every_tile_edge<float>(); }
TEST(SweepFloat, EveryDim) { attn::test::sweep_every_dim<float>(); }
TEST(SweepFloat, GroupedSingleQueries) { attn::test::sweep_grouped_single_queries<float>(); }
