// The memory of tiles, and copies into and out of it.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using detail::kAlignment;
using detail::kKeyTile;

/// Bytes [begin, end) of a part.
struct Part {
  const char* name;
  const void* begin;
  Index bytes;
};

void expect_apart(std::vector<Part> parts, const std::byte* memory, Index bytes) {
  std::erase_if(parts, [](const Part& p) { return p.bytes == 0; });
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  const std::byte* free_from = memory;
  for (const Part& p : parts) {
    const auto* begin = static_cast<const std::byte*>(p.begin);
    EXPECT_GE(begin, free_from) << p.name << " overlaps the part before it";
    free_from = begin + p.bytes;
  }
  EXPECT_LE(free_from, memory + bytes) << parts.back().name << " extends past the end";
}

TEST(TileMemory, PartsDoNotOverlap) {
  for (const bool totals : {false, true})
    for (const Index tiles : {1, 3}) {
      const detail::TileSizes sizes{.queries = 48,
                                    .query = 20,
                                    .out = 24,
                                    .packed_key = 20,
                                    .packed_value = 7,
                                    .arranged_value = 32,
                                    .weights = 24,
                                    .chunk = 4 * kKeyTile,
                                    .totals = totals};
      const detail::TileLayout<float> layout(sizes, tiles);
      EXPECT_EQ(layout.bytes() % kAlignment, 0);
      std::vector<std::byte> room(static_cast<std::size_t>(layout.bytes() + kAlignment));
      std::byte* const memory = detail::checked_workspace(room, layout.bytes()).data();
      const auto floats = [](Index n) { return n * static_cast<Index>(sizeof(float)); };
      const Index rows = floats(4 * kKeyTile), width = floats(48);
      const auto first = layout.at(memory, 0);
      std::vector<Part> parts{{"scores", first.scores, kKeyTile * width},
                              {"weights", first.weights, rows * 24},
                              {"arranged_value", first.arranged_value, rows * 32},
                              {"packed_key", first.packed_key, rows * 20},
                              {"packed_value", first.packed_value, rows * 7},
                              {"tile_max", first.tile_max, width},
                              {"tile_sum", first.tile_sum, width},
                              {"rescale", first.rescale, width},
                              {"dropped", first.dropped, kKeyTile * 48}};
      for (Index i = 0; i < tiles; ++i) {
        const auto m = layout.at(memory, i);
        EXPECT_EQ(m.scores, first.scores) << "shared by all tiles";
        EXPECT_EQ(m.dropped, first.dropped);
        EXPECT_EQ(m.scale, 1);
        for (const Part& p :
             {Part{"query", m.query, width * 20}, Part{"out", m.out, width * 24}, Part{"max", m.max, width},
              Part{"sum", m.sum, width}, Part{"sum_rest", m.sum_rest, width}, Part{"excess", m.excess, width}})
          parts.push_back(p);
        if (!totals) continue;
        for (const Part& p : {Part{"totals.max", m.totals.max, width}, Part{"totals.out", m.totals.out, width * 24},
                              Part{"totals.out_rest", m.totals.out_rest, width * 24}})
          parts.push_back(p);
      }
      expect_apart(parts, memory, layout.bytes());
    }
}

TEST(TileMemory, WorkersInTheCallersMemory) {
  constexpr Index kBytes = 3 * kAlignment, kShared = 2 * kAlignment;
  const Index need = detail::Workspace::needed(kBytes, 4, kShared);
  std::vector<std::byte> room(static_cast<std::size_t>(need) + 8);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    const std::span<std::byte> given(room.data() + offset, static_cast<std::size_t>(need));
    const detail::Workspace workspace(kBytes, 4, given, kShared);
    std::vector<Part> parts{{"shared", workspace.shared(), kShared}};
    for (int w = 0; w < 4; ++w) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.of(w)) % kAlignment, 0u);
      parts.push_back({"worker", workspace.of(w), kBytes});
    }
    expect_apart(parts, given.data(), need);
    expect_refused("too small", {std::to_string(need), std::to_string(need - 1)},
                   [&] { detail::Workspace(kBytes, 4, given.first(given.size() - 1), kShared); });
  }
}

/// Copies rows of T into and out of a tile, with each instruction set, for sizes just below and above whole vectors.
template <class T>
class Packing : public testing::Test {};
using AllScalars = testing::Types<float, double, long double>;
TYPED_TEST_SUITE(Packing, AllScalars);

template <class T>
std::vector<T> counted(Index n) {
  std::vector<T> x;
  for (Index i = 0; i < n; ++i) x.push_back(static_cast<T>(i + 1));
  return x;
}

TYPED_TEST(Packing, QueriesBecomeColumnsAndOutputsRows) {
  using T = TypeParam;
  for (const Isa isa : instruction_sets())
    for (const Index dim : {1, 7, 16, 17})
      for (const Index rows : {1, 5, 16, 33}) {
        SCOPED_TRACE(std::string(to_string(isa)) + " " + std::to_string(rows) + " x " + std::to_string(dim));
        const auto& family = detail::kernel_family<T>(detail::vectors_of(isa));
        const Index stride = dim + 3, widest = family.by_vectors[family.widest - 1].queries,
                    width = family.set_for(std::min(rows, widest)).queries;
        const Index count = std::min(rows, width);
        const auto from = counted<T>(rows * stride);
        std::vector<T> tile(static_cast<std::size_t>(dim * width)), back(from.size(), T(-1)), sum(tile.size(), T(2));
        family.load_columns(tile.data(), width, {from.data(), stride}, count, dim, T(4));
        for (Index d = 0; d < dim; ++d)
          for (Index i = 0; i < width; ++i)  // the padding repeats the last query
            ASSERT_EQ(tile[static_cast<std::size_t>(d * width + i)],
                      4 * from[static_cast<std::size_t>(std::min(i, count - 1) * stride + d)]);
        detail::TileMemory<T> m{};
        m.out = tile.data();
        m.sum = sum.data();
        sum[0] = 0;  // query 0 has no keys
        family.store_out(m, width, back.data(), stride, count, dim);
        for (Index i = 0; i < rows; ++i)
          for (Index d = 0; d < stride; ++d) {
            const auto at = static_cast<std::size_t>(i * stride + d);
            ASSERT_EQ(back[at], i >= count || d >= dim ? T(-1) : i == 0 ? T(0) : 2 * from[at]) << i << ", " << d;
          }
      }
}

TYPED_TEST(Packing, RowsOfAnyStrides) {
  using T = TypeParam;
  for (const Isa isa : instruction_sets())
    for (const Index columns : {1, 7, 16, 19})
      for (const Index rows : {1, 8, 21})
        for (const auto& [stride, column] :
             {std::pair<Index, Index>{columns + 2, 1}, {1, rows + 1}, {3 * columns, 3}}) {
          SCOPED_TRACE(std::string(to_string(isa)) + " " + std::to_string(rows) + " x " + std::to_string(columns));
          const auto& family = detail::kernel_family<T>(detail::vectors_of(isa));
          const Index size = std::max(rows * stride + columns, rows + (columns + 1) * column) + columns * column;
          const auto from = counted<T>(size);
          std::vector<T> packed(static_cast<std::size_t>(rows * columns)), back(from.size(), T(0));
          family.pack_rows({reinterpret_cast<const std::byte*>(from.data()), detail::DType::native, stride, column},
                           rows, columns, packed.data());
          family.unpack_rows(packed.data(), rows, columns,
                             {reinterpret_cast<std::byte*>(back.data()), detail::DType::native, stride, column});
          for (Index r = 0; r < rows; ++r)
            for (Index c = 0; c < columns; ++c) {
              const auto at = static_cast<std::size_t>(r * stride + c * column);
              ASSERT_EQ(packed[static_cast<std::size_t>(r * columns + c)], from[at]);
              ASSERT_EQ(back[at], from[at]);
            }
          EXPECT_EQ(std::count(back.begin(), back.end(), T(0)), size - rows * columns) << "wrote other elements";
        }
}

}  // namespace
}  // namespace attn::test
