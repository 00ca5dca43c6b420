// Layer 3: the tensors of a call, where the rows of a tile lie in them, how they come into a tile's memory, and which tiles
// there are.
#pragma once

#include <algorithm>

#include "attn/detail/query_tiles.h"
#include "attn/detail/tile_mods.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A tile of queries: the rows `rows` of a head, of which it is tile number `tile`.
struct Queries {
  Index batch;
  Index head;
  Index tile;
  Range rows;
};

/// Can the kernels read the rows in place?
template <class T>
bool is_packed(const TensorView<const T, 4>& t) {
  return t.stride(3) == 1 || t.dim(3) <= 1;
}

template <class T>
struct CallTensors {
  TensorView<T, 4> out;
  TensorView<T, 3> lse;  ///< null: not wanted
  TensorView<const T, 4> q, k, v;
  const Problem& problem;

  /// Do so many keys and values of a head stay in the L2 cache from one tile of queries to the next? They may have a
  /// quarter of the 2 MiB that today's server cores have, half of what others do.
  bool stay_in_cache(Index keys) const {
    constexpr Index kBytes = 512 * 1024;
    return keys * (problem.head_dim + problem.v_dim) * static_cast<Index>(sizeof(T)) <= kBytes;
  }

  /// With up to this many queries each goes by itself. Not where keys or values would be packed again for each, and fewer
  /// where they would be read again from farther than the cache.
  Index few_queries() const {
    if (!is_packed(k) || !is_packed(v)) return 1;
    return stay_in_cache(problem.kv_len) ? 4 : 2;
  }

  /// All pairs of these queries.
  Tile tile_of(const Queries& queries) const {
    return {queries.batch,
            queries.head,
            {problem.q_offset + queries.rows.begin, problem.q_offset + queries.rows.end},
            {0, problem.kv_len}};
  }

  /// The rows of these queries in `q` and `out`, from number `row` on.
  Rows<T> query(const Queries& queries, Index row = 0) const {
    return {first_row(q, queries.batch, queries.head, queries.rows.begin + row), q.stride(2)};
  }
  Rows<T> output(const Queries& queries, Index row = 0) const {
    return {output_data(queries) + row * out.stride(2), out.stride(2)};
  }
  T* output_data(const Queries& queries) const {
    return first_row(out, queries.batch, queries.head, queries.rows.begin);
  }

  /// The rows of keys and values that these queries see, from key `j` on.
  Rows<T> key(const Queries& queries, Index j) const {
    return {first_row(k, queries.batch, problem.kv_head(queries.head), j), k.stride(2)};
  }
  Rows<T> value(const Queries& queries, Index j) const {
    return {first_row(v, queries.batch, problem.kv_head(queries.head), j), v.stride(2)};
  }

 private:
  template <class U>
  static U* first_row(const TensorView<U, 4>& t, Index batch, Index head, Index row) {
    return t.data() + batch * t.stride(0) + head * t.stride(1) + row * t.stride(2);
  }
};

/// `count` rows of keys or values `t` as the kernels read them, copied to `packed` if they must.
template <class T>
Rows<T> rows_of(const KernelFamily<T>& family, const TensorView<const T, 4>& t, Rows<T> rows, Index count, T* packed) {
  if (is_packed(t)) return rows;
  family.pack_rows(rows.data, rows.stride, t.stride(3), count, t.dim(3), packed);
  return {packed, t.dim(3)};
}

/// `count` rows from `rows` on, whose elements are `column` apart, as columns `width` wide in `to`, times `factor`.
template <class T>
void load_columns(const KernelFamily<T>& family, Rows<T> rows, Index count, Index column, Index dim, T factor,
                  Index width, T* to) {
  if (column == 1) return family.load_columns(to, width, rows, count, dim, factor);
  for (Index d = 0; d < dim; ++d)
    for (Index i = 0; i < width; ++i)
      to[d * width + i] = rows.data[std::min(i, count - 1) * rows.stride + d * column] * factor;
}

/// The tile's queries, scaled.
template <class T>
void load_query(const KernelFamily<T>& family, const CallTensors<T>& t, const Queries& queries, Index width,
                const TileMemory<T>& m) {
  load_columns(family, t.query(queries), queries.rows.size(), t.q.stride(3), t.problem.head_dim,
               static_cast<T>(t.problem.scale), width, m.query);
}

/// Calls visit(masked, all keys to visit) for each tile of keys in which a pair may be kept, with `tile.kv` set to them.
/// Null mods: all are.
template <class T, class Visit>
void for_each_key_tile(const TileMods<T>* mods, Isa isa, Tile& tile, const Visit& visit) {
  const Range visited = mods ? mods->kv_range(tile) : tile.kv;
  for (Index j = visited.begin; j < visited.end; j += kKeyTile) {
    tile.kv = {j, std::min(j + kKeyTile, visited.end)};
    const Coverage coverage = mods ? mods->coverage(isa, tile) : Coverage::all;
    if (coverage != Coverage::none) visit(coverage == Coverage::some, visited);
  }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
