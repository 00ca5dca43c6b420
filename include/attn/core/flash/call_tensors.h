// The tensors of a call: where the rows of a tile are, and how they are loaded into a tile's memory and stored from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attn/core/flash/choose_kernels.h"
#include "attn/core/flash/query_tiles.h"
#include "attn/core/tensor/kv_rows.h"
#include "attn/core/tensor/rotation.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T>
struct CallTensors {
  DTypeView<T> out;
  TensorView<T, 3> lse;  ///< null if not requested
  DTypeView<const T> q;
  KvRows<T> k, v;
  const Problem& problem;
  /// The kernels for the types of these tensors. There is no default: every call would compile it, and with it the
  /// kernels for all types.
  const KernelChoice<T>& kernels;
  KeptLseRests<T> lse_rests = {};         ///< the parts of lse lost to rounding
  Index first_batch = 0;                  ///< batch index that mods see for element 0
  const Rotation<T>* rotation = nullptr;  ///< rotation applied to queries, see token(); null if none
  const OtherScore<T>* score = nullptr;   ///< null: the dot product of query and key
  RowList q_list = {};                    ///< rows of q, out and lse that hold the queries
  bool rows_are_heads = false;            ///< all queries belong to the same token; see JoinedHeads
  Index most_queries = 0;                 ///< per tile; 0: as many as the kernels take
  ChooseDots<T> choose_dots = nullptr;    ///< for 8-bit integers; null for other types

  /// Bytes of `keys` keys and values of a head; without an argument, of the whole call.
  Index kv_bytes(Index keys) const { return keys * (k.size_of_row() + v.size_of_row()); }
  double kv_bytes() const {  // an Index could overflow for views that repeat heads
    return static_cast<double>(problem.batch * problem.kv_heads) * static_cast<double>(kv_bytes(problem.kv_len));
  }

  /// Whether the keys and values of a head stay in the L2 cache from one tile of queries to the next. The limit is 512
  /// KiB: a quarter of the L2 cache of today's server cores, and half of that of other cores.
  bool stay_in_cache(Index keys) const { return kv_bytes(keys) <= 512 * 1024; }

  /// The pairs of these queries with some rows of keys, or with all. Mods see positions; everything else counts rows.
  /// pairs() converts rows to positions, and keys_at() converts key positions back to rows.
  Tile pairs(const QueryTile& queries, const Range& keys) const {
    const Index first = problem.first_query(queries.batch), first_key = problem.kv_offset;
    return {first_batch + queries.batch,
            queries.head,
            {first + queries.rows.begin, first + queries.rows.end},
            {first_key + keys.begin, first_key + keys.end}};
  }
  Tile pairs(const QueryTile& queries) const { return pairs(queries, {0, problem.kv_len}); }
  Range keys_at(const Range& positions) const {
    return {positions.begin - problem.kv_offset, positions.end - problem.kv_offset};
  }

  /// The token of `rotation` that the first of these queries belongs to. Each row is a token, unless rows are heads.
  Index token(const QueryTile& queries) const {
    return rows_are_heads ? queries.batch : queries.batch * problem.q_len + queries.rows.begin;
  }

  /// The rows of these queries in `q` and in `out`, from query `row` on.
  RowsToRead query(const QueryTile& queries, Index row = 0) const { return rows_of(q, queries, row); }
  RowsToWrite output(const QueryTile& queries, Index row = 0) const { return rows_of(out, queries, row); }
  /// Number of these queries from `row` on that are equally spaced in memory.
  Index piece(const QueryTile& queries, Index row) const {
    const Index left = queries.rows.size() - row;
    return q_list.exists() ? std::min(left, q_list.left_of_run(queries.rows.begin + row)) : left;
  }
  /// The log-sum-exp of one of these queries.
  T& lse_of(const QueryTile& queries, Index row) const {
    return lse(queries.batch, queries.head, row_in_tensor(queries, row));
  }

  /// The rows of keys and values that these queries see, from key `j` on.
  RowsToRead key(const QueryTile& queries, Index j) const {
    return k.rows(queries.batch, problem.kv_head(queries.head), j);
  }
  RowsToRead value(const QueryTile& queries, Index j) const {
    return v.rows(queries.batch, problem.kv_head(queries.head), j);
  }

 private:
  Index row_in_tensor(const QueryTile& queries, Index row) const {
    const Index number = queries.rows.begin + row;
    return q_list.exists() ? q_list.at(queries.batch, 0, number) : number;
  }
  template <class U>
  auto rows_of(const DTypeView<U>& t, const QueryTile& queries, Index row) const {
    auto rows = t.rows(queries.batch, queries.head, row_in_tensor(queries, row));
    rows.stride *= q_list.step;
    return rows;
  }
};

/// Whether kernels can read rows of `dim` elements in place. Pairs of 16-bit elements are read as one 32-bit value.
inline bool in_place(const Format& format, const RowsToRead& rows, Index dim) {
  const Index pair = format.per_number();
  return rows.dtype == format.dtype && (rows.column == 1 || dim <= 1) && rows.stride % pair == 0 &&
         (format.columns == 1 || dim % format.columns == 0) &&
         (pair == 1 || reinterpret_cast<std::uintptr_t>(rows.data) % sizeof(float) == 0);
}
/// Whether kernels can read the rows of every head in place.
template <class T>
bool in_place(const Format& format, const DTypeView<T>& t) {
  return in_place(format, t.rows(0, 0), t.dim(3)) && t.stride(0) % format.per_number() == 0 &&
         t.stride(1) % format.per_number() == 0;
}

/// Whether these rows are column-major, so that they are loaded into a tile and stored from it column by column.
template <class Byte>
bool is_column_major(const DTypeRows<Byte>& rows) {
  return rows.dtype == DType::native && rows.stride == 1 && rows.column != 1;
}

/// `count` rows of `dim` elements as the kernels read them. They are copied to `packed` if kernels cannot read them in
/// place, or if `count` is not a multiple of `multiple`.
template <class T>
Rows<T> rows_of(const KernelFamily<T>& family, const RowsToRead& rows, Index count, Index dim, Index multiple,
                T* packed) {
  const Format& format = family.format;
  if (in_place(format, rows, dim) && count % multiple == 0)
    return {reinterpret_cast<const T*>(rows.data), rows.stride / format.per_number()};
  family.pack_rows(rows, count, dim, packed);
  return {packed, format.row(dim)};
}

/// Packs some keys, or values, of a head: copies them back to back into the format that the kernels of a family read.
template <class T>
void pack_kv(const KernelFamily<T>& family, const KvRows<T>& t, Index batch, Index head, const Range& keys, T* packed) {
  const Index dim = t.dim(3), row = family.format.row(dim);
  for (Index j = keys.begin; j < keys.end;) {
    const Index count = t.piece(j, keys);
    T* const piece = packed + (j - keys.begin) * row;
    family.pack_rows(t.rows(batch, head, j), count, dim, piece);
    for (Index i = 0; t.is_scaled() && i < count; ++i) {
      const T scale = static_cast<T>(t.scales(batch, head, j)[i]);
      for (T& x : std::span(piece + i * row, static_cast<std::size_t>(dim))) x *= scale;
    }
    j += count;
  }
}

/// Some keys, or values, of a head as kernels read them: in place if possible, otherwise packed.
template <class T>
Rows<T> kv_rows_of(const KernelFamily<T>& family, const KvRows<T>& t, Index batch, Index head, const Range& keys,
                   Index multiple, T* packed) {
  if (t.in_one_piece(keys) && !t.is_scaled())
    return rows_of(family, t.rows(batch, head, keys.begin), keys.size(), t.dim(3), multiple, packed);
  pack_kv(family, t, batch, head, keys, packed);
  return {packed, family.format.row(t.dim(3))};
}

/// Copies `count` rows of `dim` elements to `rotated` and rotates row i by the angles of token first + i * step.
template <class T>
RowsToRead rotated_rows(const KernelFamily<T>& full_precision, const RowsToRead& rows, Index count, Index dim,
                        const Rotation<T>& rotation, Index first, Index step, T* rotated) {
  full_precision.pack_rows(rows, count, dim, rotated);
  for (Index i = 0; i < count; ++i) rotation.rotate(rotated + i * dim, first + i * step);
  return {reinterpret_cast<const std::byte*>(rotated), DType::native, dim, 1};
}

/// Loads a tile's queries, `count` rows of `dim` elements, into m.query (dim, width), and sets m.scale to the factor
/// that scores must still be multiplied by.
template <class T>
void load_query(const KernelFamily<T>& family, const Rows<T>& rows, Index count, Index dim, T scale, Index width,
                TileMemory<T>& m) {
  const Format& format = family.format;
  const bool now = format.scales_queries;
  m.scale = now ? T(1) : scale;
  family.load_columns(m.query, width, rows, count, format.row(dim), now ? scale : T(1));
}

/// Whether load_query() packs queries before it loads them into a tile.
template <class T>
bool copies_queries(const Format& format, const DTypeView<T>& q) {
  return !in_place(format, q) && !(format.dtype == DType::native && is_column_major(q.rows(0, 0)));
}

/// Like the overload above, for rows that kernels may be unable to read in place. `packed` has space for a copy of
/// them.
template <class T>
void load_query(const KernelFamily<T>& family, const RowsToRead& rows, Index count, Index dim, T scale, Index width,
                T* packed, TileMemory<T>& m) {
  if (family.format.dtype == DType::native && is_column_major(rows)) {
    m.scale = 1;
    return family.copy_columns(m.query, width, reinterpret_cast<const T*>(rows.data), rows.column, count, dim, scale);
  }
  load_query(family, rows_of(family, rows, count, dim, 1, packed), count, dim, scale, width, m);
}

/// Packs some queries back to back in the format that the kernels of a family read.
template <class T>
Rows<T> gathered_queries(const KernelFamily<T>& family, const CallTensors<T>& tensors, const QueryTile& queries,
                         T* packed) {
  const Index dim = tensors.problem.head_dim, row = family.format.row(dim);
  for (Index i = 0, count; i < queries.rows.size(); i += count) {
    count = tensors.piece(queries, i);
    family.pack_rows(tensors.query(queries, i), count, dim, packed + i * row);
  }
  return {packed, row};
}

/// Calls visit(first column, number of columns, rows from that column on) for all columns, as many at a time as fit
/// into m.scores.
template <class Byte, class Visit>
void by_columns(const DTypeRows<Byte>& rows, Index dim, Index size, const Visit& visit) {
  for (Index c = 0; c < dim; c += kKeyTile) {
    DTypeRows<Byte> part = rows;
    part.data += c * rows.column * size;
    visit(c, std::min(kKeyTile, dim - c), part);
  }
}

/// Stores the tile's output, divided by the sums: `count` rows of `dim` elements. Overwrites m.scores.
template <class T>
void store_out(const KernelFamily<T>& family, TileMemory<T> m, Index width, const RowsToWrite& rows, Index count,
               Index dim) {
  if (rows.dtype == DType::native && rows.column == 1)
    return family.store_out(m, width, reinterpret_cast<T*>(rows.data), rows.stride, count, dim);
  if (is_column_major(rows))
    return family.store_columns(m, width, reinterpret_cast<T*>(rows.data), rows.column, count, dim);
  T* const out = m.out;
  by_columns(rows, dim, size_of_element<T>(rows.dtype), [&](Index c, Index columns, const RowsToWrite& to) {
    m.out = out + c * width;
    family.store_out(m, width, m.scores, columns, count, columns);
    family.unpack_rows(m.scores, count, columns, to);
  });
}

/// Like the overload above, for queries whose rows may be scattered.
template <class T>
void store_out(const KernelFamily<T>& family, TileMemory<T> m, Index width, const CallTensors<T>& tensors,
               const QueryTile& queries) {
  const Index count = queries.rows.size(), dim = tensors.problem.v_dim;
  if (tensors.piece(queries, 0) == count) return store_out(family, m, width, tensors.output(queries), count, dim);
  T* const out = m.out;
  for (Index c = 0; c < dim; c += kKeyTile) {
    const Index columns = std::min(kKeyTile, dim - c);
    m.out = out + c * width;
    family.store_out(m, width, m.scores, columns, count, columns);
    for (Index i = 0, rows; i < count; i += rows) {
      rows = tensors.piece(queries, i);
      RowsToWrite to = tensors.output(queries, i);
      to.data += c * to.column * size_of_element<T>(to.dtype);
      family.unpack_rows(m.scores + i * columns, rows, columns, to);
    }
  }
}

/// The reverse of store_out(): loads `count` rows of `dim` elements into m.out. Overwrites m.scores.
template <class T>
void load_out(const KernelFamily<T>& family, const TileMemory<T>& m, Index width, const RowsToRead& rows, Index count,
              Index dim) {
  if (rows.dtype == DType::native && rows.column == 1)
    return family.load_columns(m.out, width, {reinterpret_cast<const T*>(rows.data), rows.stride}, count, dim, T(1));
  if (is_column_major(rows))
    return family.copy_columns(m.out, width, reinterpret_cast<const T*>(rows.data), rows.column, count, dim, T(1));
  by_columns(rows, dim, size_of_element<T>(rows.dtype), [&](Index c, Index columns, const RowsToRead& from) {
    family.pack_rows(from, count, columns, m.scores);
    family.load_columns(m.out + c * width, width, {m.scores, columns}, count, columns, T(1));
  });
}

/// The kernels of a call.
template <class T>
ChosenKernels<T> kernels_for(const CallTensors<T>& tensors, const Options& options) {
  const Problem& problem = tensors.problem;
  const auto without_products = [&](const KernelFamily<T>& family) -> ChosenKernels<T> {
    return {family, family, vectors_of(isa_of(options)), Amx::unsupported};
  };
  if (tensors.score) return without_products(tensors.score->family);
  if (problem.sigmoid_bias) return without_products(tensors.kernels.sigmoids(vectors_of(isa_of(options))));
  // The bf16 kernels of a tile sum the weights of several tiles of keys before they round. The number of these tiles
  // depends on all rows of the tile of queries, so results of a row would depend on other rows.
  // The weights of bf16 kernels are rounded, and stored in pairs, before a mod could change them.
  if (problem.row_invariant || problem.changes_weights)
    return without_products(tensors.kernels.choose(options, Bf16Products::none).family);
  ChosenKernels<T> kernels = tensors.kernels.choose(
      options, bf16_products(problem, options, {tensors.q.dtype(), tensors.k.dtype(), tensors.v.dtype()}));
  const IsaParts parts = parts_of(isa_of(options));
  // The processor is checked again, because the software stand-in for the matrix unit has no dot products.
  if (tensors.choose_dots && parts.dots != DotProducts::none && cpu_has_vnni(parts.vectors))
    kernels.dots = tensors.choose_dots(parts.vectors);
  return kernels;
}

/// Whether a call may have computed its log-sum-exps from scores that differ in their last bits from those of the tiles
/// in full precision, so that weights computed from both would not sum to 1: with kernels for bf16 or for single
/// queries, which the groups of a mask that `groups` tokens may use as well. With a kv_offset, the lse may include the
/// keys of other calls, and must be used as it is.
template <class T>
bool lse_is_of_other_scores(const CallTensors<T>& tensors, bool groups, const Options& options) {
  const Problem& problem = tensors.problem;
  if (problem.has_part_of_keys || problem.sigmoid_bias) return false;
  const ChosenKernels<T> kernels = kernels_for(tensors, options);
  return groups || kernels.in_bf16() || problem.q_len <= kernels.few_queries(problem);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
