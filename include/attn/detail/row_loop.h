// Layer 3: single queries, a few at a time that see the same keys: attention when tokens are decoded.
#pragma once

#include "attn/detail/flash_pass.h"
#include "attn/detail/query_blocks.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Blocks of queries. The loop over keys is that of TileLoop, but keys and values are read where they lie, whatever numbers
/// they hold.
template <class T>
class RowLoop {
 public:
  /// Queries in a block: fixed, because tiles of keys begin where the first key of a block lies. As many as the matrix unit
  /// takes at a time; others take some of them in turn, to whom keys come from memory once.
  static constexpr Index kMost = 16;

  RowLoop(const FlashPass<T>& pass, const QueryTiles<T>& tiles)
      : pass_(pass),
        tensors_(pass.tensors),
        problem_(pass.problem()),
        family_(pass.kernels.exact),
        parts_(parts_for(QueryBlocks<T>(problem_, tiles, kMost).count())) {}

  /// Does the matrix unit serve, for whole tiles of keys? A query that shares them with no other would leave it idle.
  bool on_matrix_unit() const {
    const KernelFamily<T>& matrix = pass_.kernels.family;
    return &matrix != &family_ && problem_.heads > problem_.kv_heads && is_whole(matrix.format, tensors_.k) &&
           is_whole(matrix.format, tensors_.v);
  }

  Index bytes() const { return layout().bytes(); }
  bool packs_keys() const { return !is_readable(tensors_.k); }
  bool packs_values() const { return !is_readable(tensors_.v); }

  /// Into how many parts the keys are cut, each with a task of its own.
  Index parts() const { return parts_; }
  /// Bytes of what a part of a block leaves for join(): whole cache lines.
  Index part_bytes() const { return padded(kMost * (problem_.v_dim + 2) * static_cast<Index>(sizeof(T)), kAlignment); }

  /// Some of the keys of a block: those of part number `part`.
  struct Part {
    Index block;
    Index part;
  };

  /// With several parts each leaves its result in `left`. `following` likely comes next.
  void run(const QueryBlocks<T>& blocks, const Part& now, const Part& following, std::byte* memory,
           std::byte* left) const {
    const TileMemory<T> m = layout().at(memory);
    Array<Row, kMost> room;
    const std::span<const Row> rows = run_part(blocks, now, first_keys(blocks, following), m, room);
    if (parts_ == 1) {
      for (Index r = 0; const Row& row : rows) {
        store_result(row.queries, m.out + r * problem_.v_dim, m.max + r, m.sum + r);
        ++r;
      }
      return;
    }
    const TileMemory<T> to = part_at(left);
    const auto count = static_cast<Index>(rows.size());
    std::copy_n(m.max, count, to.max);
    std::copy_n(m.sum, count, to.sum);
    std::copy_n(m.out, count * problem_.v_dim, to.out);
  }

  /// The result of a block from what all of its parts left, one behind the other: always in this order, whoever came first.
  void join(const QueryBlocks<T>& blocks, Index block, std::byte* left) const {
    const TileMemory<T> all = part_at(left);
    for (Index r = 0; r < blocks.size(block); ++r) {
      T* const out = all.out + r * problem_.v_dim;
      for (Index part = 1; part < parts_; ++part) {
        const TileMemory<T> more = part_at(left + part * part_bytes());
        const T max = all.max[r] > more.max[r] ? all.max[r] : more.max[r];
        const T from = max == -FlashPass<T>::kInfinity ? T(0) : max;
        const T factor = std::exp(all.max[r] - from), factor_of_more = std::exp(more.max[r] - from);
        all.max[r] = max;
        all.sum[r] = all.sum[r] * factor + more.sum[r] * factor_of_more;
        for (Index c = 0; c < problem_.v_dim; ++c)
          out[c] = out[c] * factor + more.out[r * problem_.v_dim + c] * factor_of_more;
      }
      store_result(blocks.at(block, r), out, all.max + r, all.sum + r);
    }
  }

  /// Calls visit(tile of keys, coverage) for one query.
  template <class Visit>
  void for_each_key_tile(const Queries& query, const Visit& visit) const {
    const Range visited = pass_.visited(query);
    for (Index part = 0; part < parts_; ++part) {
      const Range of_part = intersect(visited, keys_of(part));
      for (Range keys = first_tile(of_part); !keys.empty(); keys = next_tile(keys, of_part))
        visit(keys, pass_.coverage(query, visited, keys));
    }
  }

 private:
  struct Row {
    Queries queries;   ///< one
    Range visited;     ///< the keys worth visiting
    bool dropped_any;  ///< may a key have been dropped inside a tile that was visited?
  };

  /// A tile of keys, and of values, that is fetched from memory while the one before it is worked on.
  struct NextTile {
    Index batch;
    Index kv_head;
    Range keys;
  };

  /// The first keys that a part visits.
  NextTile first_keys(const QueryBlocks<T>& blocks, const Part& part) const {
    const Queries queries = blocks.at(part.block, 0);
    const Index begin = intersect(pass_.visited(queries), keys_of(part.part)).begin;
    return {queries.batch, problem_.kv_head(queries.head), {begin, begin + kKeyTile}};
  }

  /// With few blocks there would be few tasks. How many workers there are may not matter, or results would depend on it.
  Index parts_for(Index blocks) const {
    constexpr Index kTasks = 32;
    // Each part's result is joined, and which one a worker begins next, and should fetch, is but a guess.
    constexpr Index kLeastKeys = 16 * kKeyTile;
    return std::max<Index>(std::min(kTasks / std::max<Index>(blocks, 1), problem_.kv_len / kLeastKeys), 1);
  }
  Range keys_of(Index part) const {
    const Index tiles = (problem_.kv_len + kKeyTile - 1) / kKeyTile;
    return {tiles * part / parts_ * kKeyTile, std::min(tiles * (part + 1) / parts_ * kKeyTile, problem_.kv_len)};
  }
  TileMemory<T> part_at(std::byte* left) const {
    TileMemory<T> m{};
    m.max = reinterpret_cast<T*>(left);
    m.sum = m.max + kMost;
    m.out = m.sum + kMost;
    return m;
  }

  /// The state of the recurrence of each query after the keys of a part.
  std::span<const Row> run_part(const QueryBlocks<T>& blocks, const Part& now, const NextTile& following,
                                TileMemory<T> m, Array<Row, kMost>& room) const {
    const std::span rows(room, static_cast<std::size_t>(blocks.size(now.block)));
    for (Index r = 0; Row & row : rows) row = begin(blocks.at(now.block, r), now.part, r, m), ++r;
    const bool on_matrix_unit = this->on_matrix_unit();
    if (on_matrix_unit) {
      const InUse<T> in_use(pass_.kernels.family);
      load_queries(rows, m);
      visit_keys(rows, m, pass_.kernels.family.row, following, false);
    } else {
      visit_keys(rows, m, family_.row, following, false);
    }
    // See TileLoop::run().
    for (Index r = 0; Row & row : rows) {
      const bool again = (on_matrix_unit && !FlashPass<T>::is_sound(m.sum[r])) ||
                         ((row.dropped_any || on_matrix_unit) && !is_finite(m, r));
      if (again) {
        TileMemory<T> alone = m;
        alone.out += r * problem_.v_dim;
        alone.query += r * problem_.head_dim;
        alone.max += r;
        alone.sum += r;
        const bool by_selection = row.dropped_any;
        row = begin(row.queries, now.part, 0, alone);
        visit_keys({&row, 1}, alone, family_.row, following, by_selection);
      }
      ++r;
    }
    return rows;
  }

  /// Rows as the matrix unit reads them, at any address.
  static bool is_whole(const Format& format, const KeyRows<T>& t) {
    return t.storage() == format.storage && t.stride(3) == 1 && t.dim(3) % format.columns == 0 &&
           !t.cuts_tiles_of(kKeyTile);
  }
  static bool is_readable(const KeyRows<T>& t) {
    return (t.stride(3) == 1 || t.dim(3) <= 1) && !t.cuts_tiles_of(kKeyTile);
  }

  TileLayout<T> layout() const {
    return TileLayout<T>({.queries = kMost,
                          .query = problem_.head_dim,
                          .out = problem_.v_dim,
                          .packed_key = packs_keys() ? problem_.head_dim : 0,
                          .packed_value = packs_values() ? problem_.v_dim : 0,
                          .arranged = on_matrix_unit() ? problem_.head_dim / 2 : 0});
  }

  bool is_finite(const TileMemory<T>& m, Index r) const {
    return family_.all_finite({m.out + r * problem_.v_dim, 0}, 1, problem_.v_dim);
  }

  /// The queries of a block, neighbouring heads, once more: as the matrix unit reads them, not scaled.
  void load_queries(std::span<const Row> rows, TileMemory<T>& m) const {
    const KernelFamily<T>& matrix = pass_.kernels.family;
    const Index count = static_cast<Index>(rows.size()), dim = problem_.head_dim, width = matrix.by_vectors[0].queries;
    RowsToRead heads = tensors_.query(rows.front().queries);
    heads.stride = tensors_.q.stride(1);
    // Behind those that are arranged there is room for them turned, and packed: 8 + 16 + 8 of the 32 * head_dim numbers.
    T* packed = m.arranged + width * matrix.format.row(dim);
    if (tensors_.rotation) {
      const Index token = rows.front().queries.rows.begin;
      heads = turned_rows(family_, heads, count, dim, *tensors_.rotation, token, 0, packed);
      packed += count * dim;
    }
    matrix.load_columns(m.arranged, width, rows_of(matrix, heads, count, dim, packed), count, matrix.format.row(dim),
                        T(1));
    m.scale = static_cast<T>(problem_.scale);
  }

  /// The state of row `r` before the keys of a part. What comes before all keys, comes before those of the first.
  Row begin(const Queries& queries, Index part, Index r, const TileMemory<T>& m) const {
    T* const query = m.query + r * problem_.head_dim;
    family_.pack_rows(tensors_.query(queries), 1, problem_.head_dim, query);
    if (tensors_.rotation) tensors_.rotation->turn(query, queries.rows.begin);
    for (Index d = 0; d < problem_.head_dim; ++d) query[d] *= static_cast<T>(problem_.scale);
    T* const out = m.out + r * problem_.v_dim;
    if (part == 0) {
      pass_.begin(queries, 1, 1, m.max + r, m.sum + r);
    } else {
      m.max[r] = -FlashPass<T>::kInfinity;
      m.sum[r] = 0;
    }
    if (part == 0 && pass_.resumes)
      family_.pack_rows(RowsToRead(tensors_.output(queries)), 1, problem_.v_dim, out);
    else
      std::fill_n(out, problem_.v_dim, T(0));
    return {queries, intersect(pass_.visited(queries), keys_of(part)), false};
  }

  /// `whole`: the kernels for whole tiles of keys.
  void visit_keys(std::span<Row> rows, const TileMemory<T>& m, const RowKernelSet<T>& whole, const NextTile& following,
                  bool by_selection) const {
    const Range all = hull_of_visited(rows);
    const Queries& first = rows.front().queries;
    for (Range keys = first_tile(all); !keys.empty(); keys = next_tile(keys, all)) {
      Array<Coverage, kMost> coverage;
      bool any = false;
      for (Index r = 0; const Row& row : rows) {
        coverage[r] = pass_.coverage(row.queries, row.visited, keys);
        any |= coverage[r++] != Coverage::none;
      }
      const NextTile next = keys.end == all.end
                                ? following
                                : NextTile{first.batch, problem_.kv_head(first.head), {keys.end, keys.end + kKeyTile}};
      if (any) add_keys(rows, coverage, keys, next, m, keys.size() == kKeyTile ? whole : family_.row, by_selection);
    }
  }

  /// The tiles of keys of a range: where keys lie in pages, they begin at multiples of their length.
  Range first_tile(const Range& all) const {
    const Index begin = tensors_.k.is_paged() ? all.begin / kKeyTile * kKeyTile : all.begin;
    return {all.begin, std::min(begin + kKeyTile, all.end)};
  }
  static Range next_tile(const Range& keys, const Range& all) {
    return {keys.end, std::min(keys.end + kKeyTile, all.end)};
  }

  /// One step of the recurrence: brings max, sum and out up to date with some keys and values.
  void add_keys(std::span<Row> rows, const Coverage* coverage, const Range& keys, const NextTile& next,
                const TileMemory<T>& m, const RowKernelSet<T>& kernels, bool by_selection) const {
    const Index count = keys.size(), row_count = static_cast<Index>(rows.size());
    const Queries& first = rows.front().queries;
    const RowsToRead key = readable(tensors_.k, first, keys, m.packed_key),
                     value = readable(tensors_.v, first, keys, m.packed_value);
    Fetching fetching =
        Fetching::of<T>(ahead(tensors_.k, next), problem_.head_dim, ahead(tensors_.v, next), problem_.v_dim, kKeyTile);
    kernels.score(m, row_count, key, count, problem_.head_dim, fetching);
    multiply_by_scales(tensors_.k, first, keys, row_count, m.scores);
    for (Index r = 0; Row & row : rows) {
      T* const scores = m.scores + r * kKeyTile;
      if (coverage[r] == Coverage::none) {
        std::fill_n(scores, count, -FlashPass<T>::kInfinity);
        row.dropped_any = true;
      } else if (coverage[r] == Coverage::some || pass_.has_scores()) {
        pass_.mods->apply(pass_.kernels.isa, scores, 1, pass_.pairs(row.queries, keys), coverage[r] == Coverage::some);
        row.dropped_any = true;  // a changed score may be -inf
      }
      if (by_selection)
        for (Index i = 0; i < count; ++i) m.dropped[i] = scores[i] == -FlashPass<T>::kInfinity;
      kernels.softmax(m, r++, count, fetching);
    }
    multiply_by_scales(tensors_.v, first, keys, row_count, m.scores);
    if (by_selection)
      value_of_kept(m, value, count);
    else
      kernels.value(m, row_count, value, count, problem_.v_dim, fetching);
  }

  /// Scores, or weights, times the scales of keys, or values, that are read as the integers they are.
  void multiply_by_scales(const KeyRows<T>& t, const Queries& queries, const Range& keys, Index rows,
                          T* numbers) const {
    if (!t.is_scaled() || !is_readable(t)) return;
    const float* const scales = t.scales(queries.batch, problem_.kv_head(queries.head), keys.begin);
    for (Index r = 0; r < rows; ++r)
      for (Index j = 0; j < keys.size(); ++j) numbers[r * kKeyTile + j] *= static_cast<T>(scales[j]);
  }

  /// The rows of a tile that may be fetched from memory: a whole one in one piece, or nothing.
  RowsToRead ahead(const KeyRows<T>& t, const NextTile& tile) const {
    if (tile.keys.end > problem_.kv_len || !t.in_one_piece(tile.keys)) return {nullptr, Storage::native, 0, 0};
    return t.rows(tile.batch, tile.kv_head, tile.keys.begin);
  }

  /// As the kernel value(), for one row, but a dropped pair is not even multiplied.
  void value_of_kept(const TileMemory<T>& m, const RowsToRead& value, Index keys) const {
    for (Index c = 0; c < problem_.v_dim; ++c) {
      T sum = m.out[c] * m.rescale[0];
      for (Index j = 0; j < keys; ++j)
        if (!m.dropped[j]) sum += m.scores[j] * load_number<T>(value, j, c);
      m.out[c] = sum;
    }
  }

  /// Rows whose numbers lie next to each other, a stride apart.
  RowsToRead readable(const KeyRows<T>& t, const Queries& queries, const Range& keys, T* packed) const {
    const Index batch = queries.batch, kv_head = problem_.kv_head(queries.head);
    if (is_readable(t)) return t.rows(batch, kv_head, keys.begin);
    pack_keys(family_, t, batch, kv_head, keys, packed);
    return {reinterpret_cast<const std::byte*>(packed), Storage::native, t.dim(3), 1};
  }

  /// out / sum and the log-sum-exp; 0 where no key was kept.
  void store_result(const Queries& queries, T* out, const T* max, const T* sum) const {
    const T inverse = *sum == T(0) ? T(0) : T(1) / *sum;
    for (Index c = 0; c < problem_.v_dim; ++c) out[c] *= inverse;
    family_.unpack_rows(out, 1, problem_.v_dim, tensors_.output(queries));
    pass_.store_lse(queries, max, sum);
  }

  const FlashPass<T>& pass_;
  const CallTensors<T>& tensors_;
  const Problem& problem_;
  const KernelFamily<T>& family_;
  Index parts_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
