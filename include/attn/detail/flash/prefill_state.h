// The state of a tile of queries on its way over the keys: the recurrence of the online softmax.
#pragma once

#include <utility>

#include "attn/detail/flash/prefill_tiles.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The state of a tile of queries, and the kernels that work on it. Shapes are those of TileMemory.
template <class T>
class PrefillState {
 public:
  using KvTile = typename PrefillTiles<T>::Tile;

  /// A state to be assigned to.
  PrefillState() = default;

  /// The state before the first key.
  PrefillState(const PassContext<T>& pass, const KernelFamily<T>& family, const QueryTile& of, const TileMemory<T>& m)
      : queries(of),
        visited(pass.visited(of)),
        pass_(&pass),
        family_(&family),
        kernels_(&family.set_for(of.rows.size())),
        m_(m),
        update_(pass.resumes ? OutUpdate::add : OutUpdate::overwrite),
        dropped_any_(false),
        kept_factor_(pass.kept_factor()),
        value_{},
        first_(0),
        waiting_(0),
        added_(0),
        has_totals_(false) {
    load_queries();
    if (pass.tensors.score) m_.score_weight = pass.tensors.score->of(of.head);
    pass.begin(queries, queries.rows.size(), width(), m_);
    if (pass.resumes) load_output();
  }

  QueryTile queries;
  Range visited;  ///< the keys worth visiting

  const KernelFamily<T>& family() const { return *family_; }
  const TileMemory<T>& memory() const { return m_; }

  /// One step of the recurrence: adds a tile of keys. max and sum are updated now; `out` is updated now, or later, when
  /// the weights of several tiles are multiplied together. `ahead` is fetched during that product.
  void add_keys(const KvTile& tile, Coverage coverage, bool by_selection, const PrefetchPlan& ahead) {
    const Index count = tile.keys.size(), v_dim = problem().v_dim;
    const bool modded = pass_->changes_scores(coverage);
    if (added_ == kStretch) end_stretch();
    ++added_;
    TileMemory<T> m = m_;
    m.weights = weights_of(tile.first);
    kernels_->score(m, tile.key, count, problem().head_dim);
    if (modded) {
      family_->scale_scores(m, count);
      pass_->apply_mods(m.scores, width(), queries, tile.keys, coverage);
      family_->find_max(m, width(), count);
    }
    dropped_any_ |= modded;  // a changed score may be -inf
    const bool select = modded && by_selection && !family_->all_finite(tile.value, count, v_dim);
    if (select) family_->find_dropped(m, width(), count);
    const bool moved = kernels_->softmax(m, count, tile.value, v_dim);
    if (kept_factor_ != T(1)) pass_->drop_weights(m.weights, order_of_weights(), width(), queries, tile.keys);
    if (moved) multiply(ahead);  // the weights that wait are relative to the old maximum
    if (moved && update_ == OutUpdate::add) update_ = OutUpdate::rescale_and_add;
    if (select) {
      family_->value_by_selection(m, width(), tile.value, count, v_dim, update_);
      update_ = OutUpdate::add;
      return;
    }
    if (waiting_ == 0) {
      value_ = tile.value;
      first_ = tile.first;
    }
    waiting_ += padded(count, family_->format.keys);
    if (!family_->format.defers_value_product || update_ == OutUpdate::rescale_and_add) multiply(ahead);
  }

  /// Brings `out` up to date: multiplies the weights that wait with their values.
  void multiply(const PrefetchPlan& ahead) {
    if (waiting_ == 0) return;
    TileMemory<T> m = m_;
    m.weights = weights_of(first_);
    kernels_->value(m, value_, waiting_, problem().v_dim, update_, ahead);
    update_ = OutUpdate::add;
    waiting_ = 0;
  }

  /// Ends the recurrence after the last key.
  void finish() {
    if (update_ == OutUpdate::overwrite) std::fill_n(m_.out, problem().v_dim * width(), T(0));
    if (has_totals_) end_stretch();
    full_precision().finish(m_, width(), problem().v_dim, has_totals_);
    multiply_out(kept_factor_);
  }

  bool must_compute_again() const {
    return detail::must_compute_again(pass_->kernels, family_ != &full_precision(), dropped_any_, m_.sum, width(),
                                      m_.out, problem().v_dim * width());
  }

  /// Stores out / sum, 0 where no key was kept, and the log-sum-exps.
  void store_result() const {
    store_out(full_precision(), m_, width(), pass_->tensors, queries);
    pass_->store_lse(queries, m_.max, m_.sum);
  }

 private:
  const Problem& problem() const { return pass_->problem(); }
  const KernelFamily<T>& full_precision() const { return pass_->kernels.full_precision; }
  Index width() const { return kernels_->queries; }

  /// Where the weights of the keys from row `first` of a chunk on lie.
  T* weights_of(Index first) const {
    const Format& format = family_->format;
    return format.defers_value_product ? m_.weights + first * width() / format.per_number() : m_.weights;
  }

  WeightOrder order_of_weights() const {
    return family_->format.dtype == DType::native ? WeightOrder::keys_by_queries : WeightOrder::bf16_pairs;
  }

  void load_queries() {
    const CallTensors<T>& tensors = pass_->tensors;
    const Index count = queries.rows.size(), dim = problem().head_dim;
    const T scale = static_cast<T>(problem().scale);
    if (tensors.q_list.exists())
      return load_query(*family_, gathered_queries(*family_, tensors, queries, m_.packed_key), count, dim, scale,
                        width(), m_);
    RowsToRead rows = tensors.query(queries);
    T* packed = m_.packed_key;
    // Rows that are turned, and then packed, fit in as well: a chunk has more keys than a tile has queries, by far.
    if (tensors.rotation) {
      rows = turned_rows(full_precision(), rows, count, dim, *tensors.rotation, queries.rows.begin, 1, packed);
      packed += count * dim;
    }
    load_query(*family_, rows, count, dim, scale, width(), packed, m_);
  }

  /// Loads what the earlier passes left; zeros stand in the rest of the memory, and where those passes kept no key.
  void load_output() {
    const Index v_dim = problem().v_dim, rest = padded(v_dim, family_->format.out) - v_dim;
    load_out(full_precision(), m_, width(), pass_->tensors.output(queries), queries.rows.size(), v_dim);
    std::fill_n(m_.out + v_dim * width(), rest * width(), T(0));
    for (Index i = 0; i < queries.rows.size(); ++i)
      for (Index c = 0; m_.sum[i] != T(1) && c < v_dim; ++c) {
        T& x = m_.out[c * width() + i];
        x = m_.sum[i] == T(0) ? T(0) : x * m_.sum[i];
      }
    multiply_out(static_cast<T>(inverse_of(kept_factor_)));
  }

  void multiply_out(T factor) { full_precision().multiply(m_.out, problem().v_dim * width(), factor); }

  /// Adds the output to the totals, and begins another stretch.
  void end_stretch() {
    multiply(kNoPlan);
    full_precision().end_stretch(m_, width(), problem().v_dim, OutLayout::by_column, !std::exchange(has_totals_, true));
    update_ = OutUpdate::overwrite;
    added_ = 0;
  }

  const PassContext<T>* pass_;
  const KernelFamily<T>* family_;
  const KernelSet<T>* kernels_;
  TileMemory<T> m_;
  OutUpdate update_;  ///< what becomes of `out` with the next product of weights and values
  bool dropped_any_;  ///< whether a pair may have been dropped inside a tile of keys that was added
  T kept_factor_;     ///< what the output must still be multiplied by; see PassContext
  Rows<T> value_;     ///< values whose weights wait to be multiplied
  Index first_;       ///< the first of these, in the chunk
  Index waiting_;     ///< how many values wait
  Index added_;       ///< tiles of keys in the present stretch
  bool has_totals_;   ///< whether there was a stretch before
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
