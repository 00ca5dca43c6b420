// Tiles of keys and values as the loop of the backward pass reads them, and the memory of their gradients.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/detail/backward/backward_plan.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Prepares tiles of keys for the kernels, which read them in the caller's memory if they can. Otherwise tiles are
/// packed into the memory of a chunk.
template <class T>
class BackwardTiles {
 public:
  /// A loaded tile of keys and values.
  struct Tile {
    Range range;
    Rows<T> key, value;
    Rows<T> arranged_key;      ///< as the value product reads it
    T *grad_key, *grad_value;  ///< (keys, key_row), (keys, value_row)
    bool checked = false;      ///< whether `finite` is known
    bool finite = true;        ///< whether all keys and values are finite
  };

  BackwardTiles(const BackwardCall<T>& call, const BackwardPlan<T>& plan)
      : tensors_(call.tensors), plan_(plan), problem_(plan.problem()), family_(plan.family()) {}

  /// Loads tile number `tile` of a group's keys as tile `i` of a chunk, with zero gradients.
  void load(Tile& keys, std::byte* group_memory, Index batch, Index kv_head, Index tile, Index query_part, Index i,
            const WorkerMemory<T>& m) const {
    const Index first = i * kKeyTile;
    keys = {};
    keys.checked = plan_.on_matrix_unit();  // tensors that suit the matrix unit are finite
    keys.range = {tile * kKeyTile, std::min((tile + 1) * kKeyTile, problem_.kv_len)};
    const auto rows = [&](const KvRows<T>& t, Index dim, T* packed) {
      return kv_rows_of(family_, t, batch, kv_head, keys.range, family_.format.keys, packed + first * plan_.row(dim));
    };
    keys.key = rows(tensors_.k, problem_.head_dim, m.packed_key);
    keys.value = rows(tensors_.v, problem_.v_dim, m.packed_value);
    keys.arranged_key = family_.arrange_values(keys.key, keys.range.size(), problem_.head_dim,
                                               m.arranged_key + first * plan_.arranged_row());
    keys.grad_key = m.grad_key + first * plan_.key_row();
    keys.grad_value = m.grad_value + first * plan_.value_row();
    if (plan_.query_parts() > 1) {
      keys.grad_key = plan_.grad_key_of(group_memory, query_part) + keys.range.begin * plan_.key_row();
      keys.grad_value = plan_.grad_value_of(group_memory, query_part) + keys.range.begin * plan_.value_row();
    }
    std::fill_n(keys.grad_key, keys.range.size() * plan_.key_row(), T(0));
    std::fill_n(keys.grad_value, keys.range.size() * plan_.value_row(), T(0));
  }

  /// Whether all keys and values of a tile are finite. They are checked once, on the first call.
  bool is_finite(Tile& keys) const {
    if (!std::exchange(keys.checked, true))
      keys.finite = family_.all_finite(keys.key, keys.range.size(), problem_.head_dim) &&
                    family_.all_finite(keys.value, keys.range.size(), problem_.v_dim);
    return keys.finite;
  }

 private:
  const CallTensors<T>& tensors_;
  const BackwardPlan<T>& plan_;
  const Problem& problem_;
  const KernelFamily<T>& family_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
