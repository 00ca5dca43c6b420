// Both paths in long double against the oracle.
#include "support/sweep.h"

TEST(SweepLongDouble, EveryRowAtTinySizes) { attn::test::sweep_every_row_at_tiny_sizes<long double>(); }
TEST(SweepLongDouble, EveryModAtEveryTileEdge) { attn::test::sweep_every_mod_at_every_tile_edge<long double>(); }
TEST(SweepLongDouble, EveryDim) { attn::test::sweep_every_dim<long double>(); }
