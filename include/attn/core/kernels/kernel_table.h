// The kernels compiled for each instruction set, and the choice among them at run time.
#pragma once

#include <type_traits>

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/decode_kernels.h"
#include "attn/core/kernels/packing_kernels.h"
#include "attn/core/kernels/tile_kernels.h"
#include "attn/core/kernels/total_kernels.h"
#include "attn/isa.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The kernels of one instruction set for tiles of one width, as pointers: the prefill loop is compiled once and runs
/// with any of them. The cost of a call through a pointer is negligible beside a tile, which takes tens of thousands of
/// operations.
template <class T>
struct KernelSet {
  Index queries;  ///< in a tile
  void (*score)(const TileMemory<T>&, Rows<T>, Index keys, Index head_dim);
  bool (*softmax)(const TileMemory<T>&, Index keys, Rows<T> value, Index v_dim);
  void (*value)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim, OutUpdate, const PrefetchPlan&);
};

/// The two products of single queries.
template <class T>
struct DecodeProducts {
  void (*score)(const TileMemory<T>&, Index rows, const RowsToRead& key, Index keys, Index head_dim, Prefetcher&);
  void (*value)(const TileMemory<T>&, Index rows, const RowsToRead& value, Index keys, Index v_dim, Prefetcher&);
};

/// The kernels for single queries, up to 16 of them at a time.
template <class T>
struct DecodeKernelSet {
  DecodeProducts<T> products[kDTypes];  ///< over keys and values of each DType; null for types that are never read
  void (*softmax)(const TileMemory<T>&, Index row, Index keys, Prefetcher&);
  bool needs_no_prefetch;  ///< whether one query needs no prefetches; see DecodeKernels

  auto score_of(DType keys) const { return products[static_cast<int>(keys)].score; }
  auto value_of(DType values) const { return products[static_cast<int>(values)].value; }
};

/// Kernels for 8-bit integers in caches, in place of the score and value products of a DecodeKernelSet. They also apply
/// the caches' scales, with vectors as wide as those of the products: with 16-byte vectors a call took 1.02 times as
/// long. The cache selects these kernels, so programs without such a cache do not compile them.
template <class T>
struct DotKernels {
  Index columns;       ///< head_dim and v_dim must be multiples of it
  Index query_header;  ///< elements of type T that arrange_query() needs besides head_dim
  /// Converts a query to integers. Returns false if it has elements that are not finite, or if the largest magnitude is
  /// neither 0 nor in 2^-100 .. 2^100.
  bool (*arrange_query)(const T* query, Index head_dim, T* to);
  /// Reads the queries that arrange_query() has stored in arranged_query.
  void (*score)(const TileMemory<T>&, Index rows, const RowsToRead& key, Index keys, Index head_dim, Prefetcher&);
  /// Returns false and does nothing if weights cannot be converted to integers; see arrange_query().
  bool (*value)(const TileMemory<T>&, Index rows, const RowsToRead& value, Index keys, Index v_dim, Prefetcher&);
  void (*multiply)(T* numbers, const float* scales, Index count);  ///< numbers *= scales
};

/// The format in which the kernels of a family expect queries, keys and values.
struct Format {
  DType dtype;                ///< native, or bf16, two of which take the space of a float
  Index columns;              ///< rows are padded with zeros to a multiple of this
  Index out;                  ///< space for v_dim is padded to a multiple of this
  Index keys;                 ///< rows of keys read at a time; if more than 1, tiles of keys are always whole
  bool scales_queries;        ///< whether the scale multiplies the queries, not the scores
  bool arranges_values;       ///< whether values are needed in an order other than rows
  bool defers_value_product;  ///< whether weights of several tiles of keys wait for one value product
  bool fetches;               ///< whether value products prefetch as a PrefetchPlan says

  Index per_number() const { return dtype == DType::native ? 1 : 2; }
  /// Number of elements of type T that a row of `dim` columns takes.
  Index row(Index dim) const { return padded(dim, columns) / per_number(); }
};

/// All kernels of one instruction set: by_vectors[n - 1] for tiles of n vectors of queries, up to `widest`; `decode`
/// for single queries; and the kernels that these share.
template <class T>
struct KernelFamily {
  Format format;
  int widest;
  DecodeKernelSet<T> decode;
  KernelSet<T> by_vectors[kMaxVectors];
  void (*load_columns)(T* to, Index queries, Rows<T>, Index rows, Index dim, T factor);
  void (*store_out)(const TileState<T>&, Index queries, T* to, Index stride, Index rows, Index v_dim);
  /// For column-major rows, whose columns are `column` apart.
  void (*copy_columns)(T* to, Index queries, const T* from, Index column, Index rows, Index dim, T factor);
  void (*store_columns)(const TileState<T>&, Index queries, T* to, Index column, Index rows, Index v_dim);
  void (*pack_rows)(const RowsToRead&, Index rows, Index columns, T* to);
  void (*unpack_rows)(const T* from, Index rows, Index columns, const RowsToWrite&);
  void (*multiply)(T* to, const T* from, Index count, T factor);
  void (*find_max)(const TileMemory<T>&, Index queries,
                   Index keys);  ///< recomputes tile_max after mods changed the scores
  bool (*all_finite)(Rows<T>, Index keys, Index v_dim);
  void (*find_dropped)(const TileMemory<T>&, Index queries, Index keys);
  void (*value_by_selection)(const TileMemory<T>&, Index queries, Rows<T>, Index keys, Index v_dim, OutUpdate);
  void (*end_stretch)(const TileMemory<T>&, Index queries, Index v_dim, OutLayout, bool is_first);
  void (*merge_stretch)(const TileState<T>&, Index queries, Index v_dim, bool adds_up);
  void (*finish)(const TileState<T>&, Index queries, Index v_dim, bool has_totals);

  // Only kernels for bf16 set these; the defaults do nothing.
  void (*begin)() = nothing;  ///< before a thread's first kernel on the matrix unit
  void (*end)() = nothing;    ///< after its last one
  /// Turns scores into those that mods see: multiplies them by m.scale, which becomes 1.
  void (*scale_scores)(TileMemory<T>& m, Index keys) = leave_scores;
  /// Returns values in the order in which the value product reads them, in `to` if that order differs.
  Rows<T> (*arrange_values)(Rows<T>, Index keys, Index v_dim, T* to) = leave_values;

  static void nothing() {}
  static void leave_scores(TileMemory<T>&, Index) {}
  static Rows<T> leave_values(Rows<T> value, Index, Index, T*) { return value; }

  const KernelSet<T>& set_for(Index rows) const { return by_vectors[ceil_div(rows, by_vectors[0].queries) - 1]; }
};

/// The gradients of a tile's scores, and the gradients computed from them.
template <class T>
struct ScoreGradientTile {
  const T* grad_scores;  ///< (keys, queries), 0 where a pair is dropped
  const T* query;        ///< (head_dim, queries)
  Rows<T> key;           ///< (keys, head_dim)
  const T* weight;       ///< (head_dim): see OtherScore
  T* grad_query;         ///< (head_dim, queries), added to
  T* grad_weight;        ///< (head_dim, queries), added to: each query's part of the gradient of the weights
  T* grad_key;           ///< (keys, key_row), added to
  Index key_row;         ///< head_dim in whole vectors
};

/// A score other than the product of query and key.
template <class T>
struct OtherScore {
  using AddGradients = void (*)(const ScoreGradientTile<T>&, Index queries, Index keys, Index head_dim);

  KernelFamily<T> family;      ///< whose kernels compute the score
  const T* weight;             ///< of the first head, (head_dim); kernels read it from StepMemory::score_weight
  Index stride;                ///< to the weights of the next head; 0: heads share them
  AddGradients add_gradients;  ///< null in forward passes

  const T* of(Index head) const { return weight + head * stride; }
};

/// Scope in which the calling thread uses a family's kernels; calls begin() and end().
template <class T>
class KernelScope {
 public:
  explicit KernelScope(const KernelFamily<T>& family) : end_(family.end) { family.begin(); }
  KernelScope(const KernelScope&) = delete;
  ~KernelScope() { end_(); }

 private:
  void (*end_)();
};

/// The kernels of one instruction set as tables. kOthers: if T is float, keys and values may also hold 16-bit floats.
/// Caches add kernels for smaller types (cache/cached_kernels.h).
template <class T, VectorSet kSet, bool kOthers>
struct FamilyOf {
  static constexpr int kBytes = kVectorBytes<kSet>, kRegisters = kVectorRegisters<kSet>;
  static constexpr bool kConverts = kOthers && std::is_same_v<T, float>;
  using Decode = DecodeKernels<T, kBytes, kRegisters>;
  using Packing = PackingKernels<T, kBytes, false>;
  using Columns = ColumnKernels<T, kBytes>;
  using Converting = PackingKernels<T, kBytes, kConverts>;
  using Masked = MaskedKernels<T, kBytes>;
  using Total = TotalKernels<T, kBytes>;

  template <DType kStored>
  static constexpr DecodeProducts<T> products() {
    if constexpr (kStored == DType::native || kConverts) {
      using Products = DecodeKernels<T, kBytes, kRegisters, kStored>;
      return {compiled<kSet, Products::score>, compiled<kSet, Products::value>};
    } else {
      return {};
    }
  }

  template <int kVectors>
  static constexpr KernelSet<T> tiles() {
    if constexpr (kVectors > kWidestTile<kRegisters>) {
      return {};
    } else {
      using Tiles = TileKernels<T, kBytes, kRegisters, kVectors>;
      return {Tiles::kQueries, compiled<kSet, Tiles::score>, compiled<kSet, Tiles::softmax>,
              compiled<kSet, Tiles::value>};
    }
  }

  static constexpr KernelFamily<T> kKernels = {
      .format = {.dtype = DType::native,
                 .columns = 1,
                 .out = kMaxRows,
                 .keys = 1,
                 .scales_queries = true,
                 .arranges_values = false,
                 .defers_value_product = false,
                 .fetches = true},
      .widest = kWidestTile<kRegisters>,
      .decode = {.products = {products<DType::native>(), products<DType::f16>(), products<DType::bf16>()},
                 .softmax = compiled<kSet, Decode::softmax>,
                 .needs_no_prefetch = Decode::kNeedsNoPrefetch},
      .by_vectors = {tiles<1>(), tiles<2>(), tiles<3>()},
      .load_columns = compiled<kSet, Packing::load_columns>,
      .store_out = compiled<kSet, Packing::store_out>,
      .copy_columns = compiled<kSet, Columns::copy_columns>,
      .store_columns = compiled<kSet, Columns::store_columns>,
      .pack_rows = compiled<kSet, Converting::pack_rows>,
      .unpack_rows = compiled<kSet, Converting::unpack_rows>,
      .multiply = compiled<kSet, Packing::multiply>,
      .find_max = compiled<kSet, Masked::find_max>,
      .all_finite = compiled<kSet, Masked::all_finite>,
      .find_dropped = compiled<kSet, Masked::find_dropped>,
      .value_by_selection = compiled<kSet, Masked::value_by_selection>,
      .end_stretch = compiled<kSet, Total::end_stretch>,
      .merge_stretch = compiled<kSet, Total::merge_stretch>,
      .finish = compiled<kSet, Total::finish>};
};

/// The kernels for this set of vectors, which must be available. Scalars without vectors have only one set. Without
/// kOthers, they serve calls whose tensors are all stored as T, and take two thirds as long to compile.
template <class T, bool kOthers = true, class = include_attn_instantiate_h_in_one_unit>
const KernelFamily<T>& kernel_family(VectorSet vectors) {
  return with_vectors<T>(
      vectors, []<VectorSet kSet>() -> const KernelFamily<T>& { return FamilyOf<T, kSet, kOthers>::kKernels; });
}
ATTN_COMPILED_ONCE(kernel_family)
ATTN_COMPILED_ONCE(kernel_family, false)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
