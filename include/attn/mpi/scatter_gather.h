// Scatters tensors over ranks, and gathers them again.
#pragma once

#include <vector>

#include "attn/mpi/agreement.h"
#include "attn/mpi/messages.h"
#include "attn/tensor.h"

namespace attn::detail {

/// Returns a tensor of tokens as (batch, heads, len, dim). `t` may be (len, dim), which is one head, or (batch, heads,
/// len), with one number per token.
template <class T>
TensorView<T, 4> tokens_view(const TensorView<T, 2>& t) {
  return t.unsqueeze(0).unsqueeze(0);
}
template <class T>
TensorView<T, 4> tokens_view(const TensorView<T, 3>& t) {
  return t.unsqueeze(3);
}
template <class T>
const TensorView<T, 4>& tokens_view(const TensorView<T, 4>& t) {
  return t;
}
/// Returns the token dimension of a tensor with `rank` dimensions.
constexpr int token_dimension(int rank) { return rank == 2 ? 0 : 2; }

/// Returns rows as bytes for messages, regardless of their scalar type.
template <class T>
auto as_bytes(const TensorView<T, 4>& t) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  static_assert(std::is_trivially_copyable_v<T>);
  // Has the members that RowsType reads.
  struct Bytes {
    Byte* data_;
    Shape<4> shape, strides;

    Byte* data() const { return data_; }
    Index dim(int i) const { return shape[static_cast<std::size_t>(i)]; }
    Index stride(int i) const { return strides[static_cast<std::size_t>(i)]; }
    Index size_of_element() const { return static_cast<Index>(sizeof(T)); }
  };
  return Bytes{reinterpret_cast<Byte*>(t.data()), t.shape(), t.strides()};
}

/// Copies rows of the same shape.
template <class T>
void copy_rows(const TensorView<T, 4>& to, const TensorView<const T, 4>& from) {
  for (Index b = 0; b < to.dim(0); ++b)
    for (Index h = 0; h < to.dim(1); ++h)
      for (Index i = 0; i < to.dim(2); ++i)
        for (Index j = 0; j < to.dim(3); ++j) to(b, h, i, j) = from(b, h, i, j);
}

/// The shape that a rank passes, which all ranks compare.
struct ShapeTerms {
  std::int64_t operation = 0, rank = 0, root = -1;
  std::array<std::int64_t, 4> shape{};  ///< (batch, heads, len, dim)
};

/// Returns the shape of the whole tensor. If `summed`, all dimensions except tokens must agree, and the lengths are
/// summed. Otherwise, with a root, the root's shape is returned, and the other ranks' shapes are ignored. Without a
/// root (-1), all shapes must agree.
inline Shape<4> agreed_shape(const Communicator& comm, const char* operation, int rank, const Shape<4>& own, int root,
                             bool summed) {
  ShapeTerms terms{hash_of(std::string_view(operation)), rank, root, {}};
  std::copy(own.begin(), own.end(), terms.shape.begin());
  const std::vector<ShapeTerms> all = comm.all(terms);
  for (std::size_t r = 0; r < all.size(); ++r) {
    require(all[r].operation == all[0].operation && all[r].rank == all[0].rank, "ranks disagree: rank ", r,
            " calls a different function from rank 0, or passes a tensor with a different number of dimensions");
    require(all[r].root == all[0].root, operation, ": the root is ", all[0].root, " on rank 0, ", all[r].root,
            " on rank ", r);
  }
  require(root >= -1 && root < comm.ranks(), operation, ": root ", root, " is out of range; there are ", comm.ranks(),
          " ranks");
  const auto shape_of = [&](std::size_t r) {
    Shape<4> shape;
    std::copy(all[r].shape.begin(), all[r].shape.end(), shape.begin());
    return shape;
  };
  const bool one_counts = root >= 0 && !summed;
  Shape<4> whole = shape_of(one_counts ? static_cast<std::size_t>(root) : 0);
  for (std::size_t r = 1; r < all.size() && !one_counts; ++r) {
    const Shape<4> shape = shape_of(r);
    for (std::size_t i = 0; i < 4; ++i)
      require((i == 2 && summed) || shape[i] == whole[i], operation, ": the tensor has shape ", shape_of(0),
              " on rank 0, ", shape, " on rank ", r, " as (batch, heads, len, dim)");
    if (summed) whole[2] += shape[2];
  }
  return whole;
}

/// Returns a rank's rows of a tensor that all ranks hold (root -1), or that the root holds.
template <class T>
Tensor<T, 4> scatter(const Communicator& comm, mpi::Layout layout, const TensorView<const T, 4>& tensor, int rank,
                     int root) {
  const Shape<4> whole = agreed_shape(comm, "scatter", rank, tensor.shape(), root, false);
  const auto tokens_of_rank = [&](int r) { return RankTokens(layout, whole[2], r, comm.ranks()); };
  const RankTokens own = tokens_of_rank(comm.rank());
  auto rows = Tensor<T, 4>::uninitialized({whole[0], whole[1], own.rows(), whole[3]});
  int pending = 0;
  Messages messages(comm);
  for (int part = 0; part < 2; ++part) {
    const auto to = rows_of_part(rows.view(), own, part);
    if (root < 0 || root == comm.rank())
      copy_rows(to, rows_at(tensor, own.part(part)));
    else
      messages.receive(as_bytes(to), root, MessageKind::rows, pending);
    for (int r = 0; root == comm.rank() && r < comm.ranks(); ++r)
      if (r != root)
        messages.send(as_bytes(rows_at(tensor, tokens_of_rank(r).part(part))), r, MessageKind::rows, pending);
  }
  messages.finish(pending);
  return rows;
}

/// Reverses scatter(): returns the whole tensor on all ranks (root -1), or on the root; other ranks then get an empty
/// tensor.
template <class T>
Tensor<T, 4> gather(const Communicator& comm, mpi::Layout layout, const TensorView<const T, 4>& own_rows, int rank,
                    int root) {
  const Shape<4> whole = agreed_shape(comm, "gather", rank, own_rows.shape(), root, true);
  const auto tokens_of_rank = [&](int r) { return RankTokens(layout, whole[2], r, comm.ranks()); };
  const RankTokens own = tokens_of_rank(comm.rank());
  std::vector<std::int64_t> rows = comm.all(static_cast<std::int64_t>(own_rows.dim(2)));
  for (int r = 0; r < comm.ranks(); ++r)
    require(static_cast<Index>(rows[static_cast<std::size_t>(r)]) == tokens_of_rank(r).rows(), "gather: rank ", r,
            " has ", rows[static_cast<std::size_t>(r)], " rows, but the layout gives it ", tokens_of_rank(r).rows(),
            " of ", whole[2], " tokens on ", comm.ranks(), " ranks");
  const bool gets = root < 0 || root == comm.rank();
  Tensor<T, 4> tensor = gets ? Tensor<T, 4>::uninitialized(whole) : Tensor<T, 4>();
  int pending = 0;
  Messages messages(comm);
  // To all ranks: in each step every rank sends its rows to a different rank, so that all links carry the same load.
  for (int step = 0; step < comm.ranks(); ++step)
    for (int part = 0; part < 2; ++part) {
      const int from = (comm.rank() + comm.ranks() - step) % comm.ranks(), to = (comm.rank() + step) % comm.ranks();
      if (step == 0) {
        if (gets) copy_rows(rows_at(tensor.view(), own.part(part)), rows_of_part(own_rows, own, part));
        continue;
      }
      if (gets)
        messages.receive(as_bytes(rows_at(tensor.view(), tokens_of_rank(from).part(part))), from, MessageKind::rows,
                         pending);
      if (root < 0 || to == root)
        messages.send(as_bytes(rows_of_part(own_rows, own, part)), to, MessageKind::rows, pending);
    }
  messages.finish(pending);
  return tensor;
}

}  // namespace attn::detail
