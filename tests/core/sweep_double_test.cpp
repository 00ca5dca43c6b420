// Both paths in double against the oracle.
#include "support/sweep.h"

TEST(SweepDouble, EveryRowAtTinySizes) { attn::test::sweep_every_row_at_tiny_sizes<double>(); }
TEST(SweepDouble, EveryModAtEveryTileEdge) { attn::test::sweep_every_mod_at_every_tile_edge<double>(); }
TEST(SweepDouble, EveryDim) { attn::test::sweep_every_dim<double>(); }
TEST(SweepDouble, GroupedSingleQueries) { attn::test::sweep_grouped_single_queries<double>(); }
