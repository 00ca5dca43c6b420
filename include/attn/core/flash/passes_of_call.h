// The passes of a call. Most calls have one. If a mask groups tokens, one pass computes its `near` part, if it has one,
// and one or more compute the groups. If a mask gathers keys, the passes visit the gathered keys.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/pass.h"
#include "attn/core/mods/grouping/grouped_mask.h"
#include "attn/core/mods/mapped_mods.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The tensors of a separate call on the parts of `t` that of_queries() and of_keys() select.
template <class T, class OfQueries, class OfKeys>
CallTensors<T> tensors_of(const CallTensors<T>& t, const Problem& problem, const OfQueries& of_queries,
                          const OfKeys& of_keys) {
  CallTensors<T> part{.out = of_queries(t.out),
                      .lse = of_queries(t.lse),
                      .q = of_queries(t.q),
                      .k = of_keys(t.k),
                      .v = of_keys(t.v),
                      .problem = problem,
                      .kernels = t.kernels};
  part.score = t.score;
  part.lse_rests = t.lse_rests;
  return part;
}

/// The tensors of some groups as a separate call, in which each group is a batch element and its tokens are the rows.
template <class T>
CallTensors<T> tensors_of(const CallTensors<T>& t, const TokenGroups& groups, const Problem& problem) {
  // Rows of one group are `step` rows apart, and the next group begins one row later. The stride of a single row is
  // left unchanged, because the product could overflow.
  const auto view = [&]<class View>(const View& of, Index heads, Index first, Index rows, Index step) {
    if (of.data() == nullptr) return of;
    typename View::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, shape[1] = heads, shape[2] = rows;
    strides[0] = of.stride(2);
    strides[2] = rows > 1 ? of.stride(2) * step : of.stride(2);
    return of.part(rows == 0 ? 0 : groups.batch * of.stride(0) + first * of.stride(2), shape, strides);
  };
  const auto of_queries = [&](const auto& of) {
    return view(of, problem.heads, groups.first_query, problem.q_len, groups.q_step);
  };
  const auto of_keys = [&](const DTypeView<const T>& of) {
    return view(of, problem.kv_heads, groups.first_key, problem.kv_len, groups.kv_step);
  };
  return tensors_of(t, problem, of_queries, of_keys);
}

/// The tensors of gathered tokens as a separate call, in which each sequence is a batch element.
template <class T>
CallTensors<T> tensors_of(const CallTensors<T>& t, const GatheredTokens& tokens, const Problem& problem) {
  const Index element = tokens.batch - t.first_batch;
  const auto of_queries = [&]<class View>(const View& of) {
    if (of.data() == nullptr) return of;
    typename View::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, shape[1] = problem.heads;
    strides[0] = 0;
    if (!tokens.q.exists()) shape[2] = problem.q_len, strides[0] = tokens.rows_of_sequence * of.stride(2);
    strides[1] = of.stride(1) * tokens.head_step;
    return of.part(element * of.stride(0) + tokens.first_head * of.stride(1), shape, strides);
  };
  const auto of_keys = [&](const KvRows<T>& of) {
    if (of.is_paged()) return of.listed(tokens.kv);
    typename DTypeView<const T>::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, strides[0] = 0, shape[2] = problem.kv_len;
    return KvRows<T>(of.part(element * of.stride(0), shape, strides)).listed(tokens.kv);
  };
  CallTensors<T> gathered = tensors_of(t, problem, of_queries, of_keys);
  gathered.rotation = t.rotation;
  gathered.choose_dots = t.choose_dots;
  gathered.q_list = tokens.q;
  gathered.most_queries = tokens.most_queries;
  return gathered;
}

/// Calls visit(groups, problem) for all groups of a call. Neighbouring groups of equal sizes are visited together.
template <class Visit>
void for_each_token_groups(const Problem& call, const Grouping& g, const Visit& visit) {
  const auto rows_from = [](Index first, Index len, Index step) {
    return first < len ? ceil_div(len - first, step) : 0;
  };
  Problem problem = call;
  problem.q_offsets = {};
  // Sets the number and offset of a group's keys, and returns their first row.
  const auto begin_keys = [&](Index group) {
    const Index first = floor_mod(group - call.kv_offset, g.step);
    problem.kv_len = rows_from(first, call.kv_len, g.step);
    problem.kv_offset = floor_div(call.kv_offset + first, g.step);
    return first;
  };
  for (Index batch = 0; batch < call.batch; ++batch) {
    const Index first_query = call.first_query(batch);
    if (g.shared) {
      problem.q_offset = first_query;
      problem.batch = 1;
      for (Index group = g.shared->begin; group < g.shared->end; ++group) {
        const Index first_key = begin_keys(group);
        if (problem.kv_len > 0) visit(TokenGroups{batch, 1, 0, g.step, group, 0, first_key}, problem);
      }
      continue;
    }
    const Index step = g.step, begun = std::min(step, call.q_len);  // groups that have a query
    for (Index first = 0; first < begun; first += problem.batch) {
      const Index group = floor_mod(first_query + first, step), first_key = begin_keys(group);
      problem.q_offset = floor_div(first_query + first, step);
      problem.q_len = rows_from(first, call.q_len, step);
      // Groups are visited together until the positions of queries or keys within a group shift, or until a group has
      // one query or one key fewer.
      const Index same_queries = call.q_len - (problem.q_len - 1) * step - first,
                  same_keys = problem.kv_len == 0 ? step : call.kv_len - (problem.kv_len - 1) * step - first_key;
      problem.batch = std::min({begun - first, step - group, step - first_key, same_queries, same_keys});
      visit(TokenGroups{batch, step, group, step, group, first, first_key}, problem);
    }
  }
}

/// Whether grouping saves work. A far pair is one that GroupedMask::far keeps. The groups must have clearly fewer tiles
/// than there are tiles with a far pair in the ungrouped call. Short groups do not fill a tile, and if the step is
/// long, many tiles of the ungrouped call have no far pair. Each pass over the same rows rounds them once more, so
/// there must not be many passes.
inline bool grouping_pays(const Problem& call, const Grouping& g) {
  if (call.row_invariant) return false;    // the choice depends on the lengths
  if (call.changes_weights) return false;  // a pass must visit all keys of its queries
  if (g.always) return true;
  constexpr Index kQueries = 48;  // of a float tile with AVX-512
  const auto tiles = [](Index queries, Index keys) {
    return static_cast<double>(ceil_div(queries, kQueries)) * static_cast<double>(ceil_div(keys, kKeyTile));
  };
  const Index keys = call.kv_len / g.step + 1;
  constexpr Index kMostPasses = 32;
  if (g.shared && g.shared->size() > kMostPasses) return false;
  const double grouped = g.shared
                             ? static_cast<double>(g.shared->size()) * tiles(call.q_len, keys)
                             : static_cast<double>(std::min(g.step, call.q_len)) * tiles(call.q_len / g.step + 1, keys);
  // An ungrouped tile has a far pair if any of `reach` neighbouring tokens is part of a far pair.
  const Index reach = kKeyTile + (g.shared ? g.shared->size() : kQueries);
  const double far =
      tiles(call.q_len, call.kv_len) * std::min(1.0, static_cast<double>(reach) / static_cast<double>(g.step));
  return 3 * grouped < 2 * far;
}

/// Whether a pass with the `near` part of a GroupedMask comes before the passes over groups.
template <class Mods>
constexpr bool has_near_part() {
  return requires(const Mods& mods) { requires !std::is_same_v<decltype(mods.grouped().near), NoHint>; };
}

/// The results that a resuming pass takes from the one before: the log-sum-exps with their parts lost to rounding. If
/// the caller's output has 16 bits, so that each pass would round it, the results also include the output. The memory
/// is part of the workspace, or allocated.
template <class T>
class PassResults {
 public:
  explicit PassResults(const CallTensors<T>& t) : tensors_(t) {}

  /// Bytes of workspace that the results take, in whole cache lines. workspace_bytes() has no output to inspect, so the
  /// query's type decides instead: memory for a 16-bit output of a wider query is allocated separately.
  Index bytes() const { return 2 * lse_bytes() + (is_narrow(tensors_.q) ? out_bytes() : 0); }

  /// Returns the tensors for the passes. Takes bytes() off the front of `workspace`; the passes use the rest.
  CallTensors<T> begin(std::span<std::byte>& workspace, Index workspace_bytes) {
    CallTensors<T> passes = tensors_;
    if (workspace.data() != nullptr) {
      workspace = checked_workspace(workspace, workspace_bytes);
      buffer_ = workspace.first(static_cast<std::size_t>(bytes()));
      workspace = workspace.subspan(buffer_.size());
    }
    const Problem& p = tensors_.problem;
    passes.lse = lse_ = {take(own_lse_, lse_bytes()), {p.batch, p.heads, p.q_len}};
    passes.lse_rests = rests_ = {lse_.data(), take(own_rests_, lse_bytes())};
    if (is_narrow(tensors_.out))
      passes.out = TensorView<T, 4>(take(own_out_, out_bytes()), {p.batch, p.heads, p.q_len, p.v_dim});
    out_ = passes.out;
    return passes;
  }

  /// Loads the result that a call with `accumulate` adds to.
  void load(const KernelFamily<T>& family) const {
    each_lse([&](T& theirs, T& own) {
      own = theirs;
      rests_.set(&own, tensors_.lse_rests.of(&theirs));
    });
    each_head(
        [&](const RowsToWrite& theirs, T* own, Index rows, Index dim) { family.pack_rows(theirs, rows, dim, own); });
  }

  /// Stores the log-sum-exps of the last pass in the caller's memory, and rounds the output into it.
  void end(const KernelFamily<T>& family) const {
    each_lse([&](T& theirs, const T& own) {
      theirs = own;
      tensors_.lse_rests.set(&theirs, rests_.of(&own));
    });
    each_head([&](const RowsToWrite& theirs, const T* own, Index rows, Index dim) {
      family.unpack_rows(own, rows, dim, theirs);
    });
  }

 private:
  template <class Visit>
  void each_lse(const Visit& visit) const {
    if (!tensors_.lse.data()) return;
    const Problem& p = tensors_.problem;
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        for (Index i = 0; i < p.q_len; ++i) visit(tensors_.lse(b, h, i), lse_(b, h, i));
  }
  /// Calls visit(rows of the caller's output, the same rows in the passes' own memory, row count, row length).
  template <class Visit>
  void each_head(const Visit& visit) const {
    if (!is_narrow(tensors_.out)) return;
    const Problem& p = tensors_.problem;
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        visit(tensors_.out.rows(b, h), reinterpret_cast<T*>(out_.rows(b, h).data), p.q_len, p.v_dim);
  }
  template <class View>
  static bool is_narrow(const View& view) {
    return view.dtype() != DType::native;
  }
  Index lse_bytes() const { return bytes_of(tensors_.problem.q_len); }
  Index out_bytes() const { return bytes_of(tensors_.problem.q_len * tensors_.problem.v_dim); }
  Index bytes_of(Index numbers) const {
    return padded(tensors_.problem.batch * tensors_.problem.heads * numbers * static_cast<Index>(sizeof(T)),
                  kAlignment);
  }

  /// Returns the next `bytes` of the workspace, or memory allocated in `own` if none are left.
  T* take(Tensor<std::byte, 1>& own, Index bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (buffer_.size() >= size && buffer_.data()) {
      T* const taken = reinterpret_cast<T*>(buffer_.data());
      buffer_ = buffer_.subspan(size);
      return taken;
    }
    own = Tensor<std::byte, 1>::uninitialized({bytes});
    return reinterpret_cast<T*>(own.data());
  }

  const CallTensors<T>& tensors_;
  std::span<std::byte> buffer_;
  Tensor<std::byte, 1> own_lse_, own_rests_, own_out_;
  TensorView<T, 3> lse_;
  KeptLseRests<T> rests_;
  DTypeView<T> out_;
};

/// Whether a pass resumes from the out and lse of an earlier one.
template <class Mods>
requires(has_near_part<Mods>()) bool passes_resume(const Mods& mods, const Problem& problem) {
  return grouping_pays(problem, mods.grouped().grouping);
}

/// Calls visit(pass) for each pass over the rows of the output, in order. A pass that resumes adds to the contents of
/// out and lse; the first pass resumes if `resumes`.
template <class T, class Mods, class Visit>
void for_each_pass(const CallTensors<T>& tensors, const Mods& mods, bool resumes, const Visit& visit) {
  const auto pass = [&](const CallTensors<T>& part, const auto& own, bool part_resumes) {
    const TileModsIfAny<T, std::remove_cvref_t<decltype(own)>> tile_mods(own);
    visit(Pass<T>{part, tile_mods.get(), part_resumes, tensors});
  };
  if constexpr (Mods::kIsGrouped) {
    [[maybe_unused]] const auto& mask = mods.grouped();
    if constexpr (requires { mask.gathering; }) {
      if (!tensors.problem.row_invariant && mask.gathers(tensors.problem))
        return mask.gathering->for_each(
            tensors.problem, [&](const GatheredTokens& tokens, const auto& far, const Problem& problem) {
              const auto others = mods.of(tokens.batch).without_grouped();
              pass(tensors_of(tensors, tokens, problem), MappedMods(others, tokens, far), resumes);
            });
    } else if (grouping_pays(tensors.problem, mask.grouping)) {
      constexpr bool kHasNear = has_near_part<Mods>();
      if constexpr (kHasNear) pass(tensors, mods.with_near_part(), resumes);
      return for_each_token_groups(
          tensors.problem, mask.grouping, [&](const TokenGroups& groups, const Problem& problem) {
            const Tile all{0, 0, {problem.q_offset, problem.q_offset + problem.q_len}, problem.keys()};
            if (kHasNear && mask.far.kv_range(all).empty()) return;
            // The sinks stay in `others`: a pass that resumes does not count them again.
            const auto others = mods.of(groups.batch).without_grouped();
            pass(tensors_of(tensors, groups, problem), MappedMods(others, groups, mask.far), kHasNear || resumes);
          });
    }
  }
  pass(tensors, mods, resumes);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
