// The loop of lightning_indexer(): index scores tile by tile, and the highest of each query.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attn/core/flash/call_tensors.h"
#include "attn/parallel.h"
#include "attn/tensor.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The keys with the highest of the scores that have been added, in memory for twice as many.
template <class T>
class TopKeys {
 public:
  struct Scored {
    T score;
    Index key;
  };

  explicit TopKeys(Index most) : most_(static_cast<std::size_t>(most)) {}

  /// Adds `count` keys from `first` on. Keys are added in ascending order, so a later key with an equal score loses.
  void add(const T* scores, Index first, Index count) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    for (Index i = 0; i < count; ++i) {
      const T score = std::isnan(scores[i]) ? kInfinity : scores[i];
      if (is_full_ && score <= least_) continue;
      scored_.push_back({score, first + i});
      if (scored_.size() == 2 * most_) select();
    }
  }
  /// Adds the keys that were selected among others, in any order.
  void add(const TopKeys& other) { scored_.insert(scored_.end(), other.scored_.begin(), other.scored_.end()); }

  /// Drops all but the selected keys.
  void select() {
    if (scored_.size() <= most_) return;
    const auto last = scored_.begin() + static_cast<std::ptrdiff_t>(most_) - 1;
    std::nth_element(scored_.begin(), last, scored_.end(), [](const Scored& a, const Scored& b) {
      return a.score != b.score ? a.score > b.score : a.key < b.key;
    });
    is_full_ = true;
    least_ = last->score;
    scored_.resize(most_);
  }
  /// Stores the selected keys plus `offset` in ascending order, and removes them.
  void take(Index offset, Index* to) {
    select();
    for (std::size_t i = 0; i < scored_.size(); ++i) to[i] = scored_[i].key + offset;
    std::sort(to, to + scored_.size());
    scored_.clear();
    is_full_ = false;
  }

 private:
  std::size_t most_;
  std::vector<Scored> scored_;
  bool is_full_ = false;  ///< whether keys with scores up to least_ cannot be selected any more
  T least_ = 0;
};

/// Selects the keys of all queries of a call. The lanes of a tile are the heads of one token, so scores do not depend
/// on the other tokens of the call.
template <class T>
class Indexer {
 public:
  /// The keys of a batch element: `keys` rows of `tensor`, whose batch index there is `batch`. `rotation` rotates the
  /// queries; null if none.
  struct Sequence {
    KvRows<T> tensor;
    Index batch, keys, q_offset, kv_offset;
    const Rotation<T>* rotation;
  };

  /// `q`: (batch, heads, tokens, dim), `weights`: (batch, 1, tokens, heads).
  Indexer(const DTypeView<const T>& q, const DTypeView<const T>& weights, const std::vector<Sequence>& sequences,
          const KernelFamily<T>& family, Index count, bool causal, const Executor& executor)
      : q_(q), weights_(weights), sequences_(sequences), family_(family), causal_(causal) {
    Index longest = 0;
    double pairs = 0, keys = 0;
    for (const Sequence& s : sequences) {
      longest = std::max(longest, s.keys);
      keys += static_cast<double>(s.keys);
      for (Index row = 0; row < tokens(); ++row) pairs += static_cast<double>(visible(s, row));
    }
    most_ = std::min(count, longest);
    const Index lanes = family.by_vectors[0].queries, vectors = ceil_div(heads(), lanes);
    parts_ = ceil_div<Index>(vectors, family.widest);
    tile_ = &family.by_vectors[ceil_div(vectors, parts_) - 1];
    const double size = static_cast<double>(dim());
    workers_.emplace(Work{2 * pairs * static_cast<double>(heads()) * size, keys * size * sizeof(T)}, executor);
    // A block of tokens reads the keys once. Its queries stay in L2.
    constexpr Index kMostTokens = 16, kBytes = 512 * 1024;
    const Index all = q.dim(0) * tokens(), wanted = 2 * workers_->count();
    const Index fitting = kBytes / static_cast<Index>(sizeof(T)) / std::max<Index>(query_size(), 1);
    per_block_ = std::clamp<Index>(std::min(ceil_div(all, wanted), fitting), 1, kMostTokens);
    const Index blocks = q.dim(0) * ceil_div(tokens(), per_block_);
    constexpr Index kLeastTiles = 16;  // of a task
    if (workers_->count() > 1 && blocks > 0)
      splits_ = std::clamp<Index>(wanted / blocks, 1, std::max<Index>(longest / (kLeastTiles * kKeyTile), 1));
  }

  /// Returns the positions of the selected keys: (batch, 1, tokens, count).
  Tensor<Index, 4> select() const {
    Tensor<Index, 4> selected({q_.dim(0), 1, tokens(), most_});
    if (selected.size() == 0) return selected;
    std::vector<Worker> workers(static_cast<std::size_t>(workers_->count()));
    const Index all = q_.dim(0) * tokens(), blocks = ceil_div(tokens(), per_block_);
    std::vector<TopKeys<T>> of_splits(static_cast<std::size_t>(splits_ > 1 ? all * splits_ : 0), TopKeys<T>(most_));
    workers_->run(q_.dim(0) * blocks * splits_, [&](Index task, int number) {
      const Index split = task % splits_, element = task / splits_ / blocks,
                  first = task / splits_ % blocks * per_block_;
      Worker& worker = workers[static_cast<std::size_t>(number)];
      const Range rows{first, std::min(first + per_block_, tokens())};
      if (worker.query.size() == 0) prepare(worker);
      score(element, rows, split, worker);
      for (Index row = rows.begin; row < rows.end; ++row) {
        TopKeys<T>& top = worker.top[static_cast<std::size_t>(row - first)];
        if (splits_ == 1) {
          store(element, row, top, selected);
        } else {
          top.select();
          std::swap(top, of_splits[static_cast<std::size_t>((element * tokens() + row) * splits_ + split)]);
        }
      }
    });
    if (splits_ == 1) return selected;
    workers_->run(all, 0, [&](Index number, int) {
      TopKeys<T> top(most_);
      for (Index split = 0; split < splits_; ++split)
        top.add(of_splits[static_cast<std::size_t>(number * splits_ + split)]);
      store(number / tokens(), number % tokens(), top, selected);
    });
    return selected;
  }

 private:
  /// The memory of a worker. Queries are (tokens of a block, parts, dim, lanes of a part), scores (keys, lanes).
  struct Worker {
    Tensor<T, 1> rows, query, weights, keys, scores, maxima, sums;
    std::vector<TopKeys<T>> top;  ///< of each token of a block
  };
  void prepare(Worker& worker) const {
    const Index lanes = tile_->queries;
    worker.rows = Tensor<T, 1>({heads() * dim()});
    worker.query = Tensor<T, 1>({per_block_ * query_size()});
    worker.weights = Tensor<T, 1>({per_block_ * heads()});
    worker.keys = Tensor<T, 1>({kKeyTile * dim()});
    worker.scores = Tensor<T, 1>({kKeyTile * lanes});
    worker.maxima = Tensor<T, 1>({lanes});
    worker.sums = Tensor<T, 1>({2 * kKeyTile});
    worker.top.assign(static_cast<std::size_t>(per_block_), TopKeys<T>(most_));
  }

  Index heads() const { return q_.dim(1); }
  Index tokens() const { return q_.dim(2); }
  Index dim() const { return q_.dim(3); }
  Index query_size() const { return parts_ * dim() * tile_->queries; }
  /// The number of keys that a query sees.
  Index visible(const Sequence& s, Index row) const {
    return causal_ ? std::clamp<Index>(s.q_offset + row + 1 - s.kv_offset, 0, s.keys) : s.keys;
  }
  /// Whether a query must choose among the keys that it sees.
  bool chooses(const Sequence& s, Index row) const { return visible(s, row) > most_; }

  void store(Index element, Index row, TopKeys<T>& top, Tensor<Index, 4>& selected) const {
    const Sequence& s = sequences_[static_cast<std::size_t>(element)];
    Index* const to = &selected(element, 0, row, 0);
    if (chooses(s, row)) return top.take(s.kv_offset, to);
    for (Index i = 0; i < most_; ++i) to[i] = i < visible(s, row) ? s.kv_offset + i : -1;
  }

  /// Adds the keys of a split to the candidates of some tokens.
  void score(Index element, const Range& rows, Index split, Worker& worker) const {
    const Sequence& s = sequences_[static_cast<std::size_t>(element)];
    // A later token sees at least as many keys, so the tokens that must choose are the last ones.
    Index first = rows.begin;
    while (first < rows.end && !chooses(s, first)) ++first;
    if (first == rows.end) return;
    for (Index row = first; row < rows.end; ++row) load(s, element, row, row - rows.begin, worker);
    const Index end = visible(s, rows.end - 1), tiles = ceil_div(end, kKeyTile);
    TileMemory<T> m{};
    m.tile_max = worker.maxima.data();
    m.row = kKeyTile;
    for (Index tile = tiles * split / splits_; tile < tiles * (split + 1) / splits_; ++tile) {
      const Range keys{tile * kKeyTile, std::min((tile + 1) * kKeyTile, end)};
      const Rows<T> key = kv_rows_of(family_, s.tensor, s.batch, 0, keys, 1, worker.keys.data());
      for (Index row = first; row < rows.end; ++row) {
        const Index seen = std::min(visible(s, row), keys.end) - keys.begin;
        if (seen <= 0) continue;
        add_heads(key, keys.size(), row - rows.begin, m, worker);
        worker.top[static_cast<std::size_t>(row - rows.begin)].add(worker.sums.data(), keys.begin, seen);
      }
    }
  }

  /// Loads the queries of a token, and their weights.
  void load(const Sequence& s, Index element, Index row, Index number, Worker& worker) const {
    RowsToRead heads_of_token = q_.rows(element, 0, row);
    heads_of_token.stride = q_.stride(1);
    if (s.rotation)
      heads_of_token = rotated_rows(family_, heads_of_token, heads(), dim(), *s.rotation, row, 0, worker.rows.data());
    const Rows<T> from = rows_of(family_, heads_of_token, heads(), dim(), 1, worker.rows.data());
    const Index lanes = tile_->queries;
    T* to = worker.query.data() + number * query_size();
    for (Index head = 0; head < heads(); head += lanes, to += dim() * lanes)
      family_.load_columns(to, lanes, {from.data + head * from.stride, from.stride}, std::min(lanes, heads() - head),
                           dim(), T(1));
    family_.pack_rows(weights_.rows(element, 0, row), 1, heads(), worker.weights.data() + number * heads());
  }

  /// Sets worker.sums to the scores of a tile of keys: sum over the heads of weight * relu(query * key).
  void add_heads(const Rows<T>& key, Index keys, Index number, TileMemory<T>& m, Worker& worker) const {
    const Index lanes = tile_->queries;
    T *const sums = worker.sums.data(), *const of_part = sums + kKeyTile, *const scores = worker.scores.data();
    Prefetcher nothing;
    m.query = worker.query.data() + number * query_size();
    for (Index head = 0; head < heads(); head += lanes, m.query += dim() * lanes) {
      m.scores = scores;
      tile_->score(m, key, keys, dim());
      constexpr Index kUnit = 16;  // a constant number at a time, so that compilers use vectors with -O2; keeps NaN
      for (Index i = 0; i < kKeyTile * lanes; i += kUnit)
        for (Index j = i; j < i + kUnit; ++j) scores[j] = scores[j] < 0 ? T(0) : scores[j];
      // The weighted sum is the product of a single query, the weights, with rows of scores. It always has the rows of
      // a whole tile, so that the sums of a key do not depend on how many keys follow.
      TileMemory<T> sum{};
      sum.query = worker.weights.data() + number * heads() + head;
      sum.scores = head == 0 ? sums : of_part;
      sum.row = kKeyTile;
      family_.decode.score_of(DType::native)(sum, 1,
                                             {reinterpret_cast<const std::byte*>(scores), DType::native, lanes, 1},
                                             kKeyTile, std::min(lanes, heads() - head), nothing);
      for (Index j = 0; head > 0 && j < kKeyTile; ++j) sums[j] += of_part[j];
    }
  }

  const DTypeView<const T>&q_, &weights_;
  const std::vector<Sequence>& sequences_;
  const KernelFamily<T>& family_;
  bool causal_;
  const KernelSet<T>* tile_;  ///< of each part of the heads
  std::optional<Workers> workers_;
  Index most_ = 0, parts_ = 1, per_block_ = 1, splits_ = 1;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
