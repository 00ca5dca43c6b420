// Converts tensors that a user may pass to rank-4 views, and allocates results that match them.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/tensor/dtype_view.h"
#include "attn/core/tensor/problem.h"
#include "attn/core/tensor/viewable.h"
#include "attn/result.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Evaluates an Eigen expression, and returns anything else as it is.
template <class X>
decltype(auto) evaluated(const X& x) {
  if constexpr (EigenDense<X> && !has_memory<X>)
    return typename X::PlainObject(x);
  else
    return (x);
}

/// The type that evaluated() returns: an object, or a reference.
template <class X>
using Held = decltype(evaluated(std::declval<const X&>()));

template <class X>
struct Traits {
  static_assert(check_tensor<X>());
  using Scalar = scalar_t<X>;
  static constexpr int kRank = [] {
    if constexpr (EigenDense<X>)
      return 2;
    else if constexpr (EigenTensor<X>)
      return X::NumDimensions;
    else if constexpr (Mdspan<X>)
      return static_cast<int>(X::rank());
    else
      return X::kRank;
  }();
};

/// Whether all tensors are stored in the type that a call computes in.
template <class X, class... More>
constexpr bool hold_computed_numbers() {
  if constexpr (!Viewable<X>)
    return false;
  else if constexpr (sizeof...(More) > 0)
    return hold_computed_numbers<X>() && hold_computed_numbers<More...>();
  else
    return dtype_of<typename Traits<X>::Scalar> == DType::native;
}

/// Views a 2-D argument as one head of a batch of one.
template <class T>
TensorView<T, 4> as_rank4(const TensorView<T, 2>& t) {
  return {t.data(), {1, 1, t.dim(0), t.dim(1)}, {0, 0, t.stride(0), t.stride(1)}};
}
template <class T>
const TensorView<T, 4>& as_rank4(const TensorView<T, 4>& t) {
  return t;
}

/// Explains, in a static_assert, why query, key or value cannot hold this scalar type.
template <class Scalar>
constexpr auto check_scalar() {
  static_assert(!std::is_same_v<Scalar, bool>,
                "attn: query, key and value cannot be tensors of bool; to pass a mask, use attn::keep(t), which keeps "
                "pairs where t is true, or attn::drop(t)");
  static_assert(!std::is_integral_v<Scalar> || std::is_same_v<Scalar, bool>,
                "attn: query, key and value must hold floating-point numbers; convert with .cast<float>()");
  static_assert(is_scalar<Scalar> || std::is_integral_v<Scalar>,
                "attn: query, key and value must hold float, double, long double or 16-bit floats, not a class such as "
                "Eigen::AutoDiffScalar or std::complex; pass its values");
  return is_scalar<Scalar>;
}

/// Explains, in a static_assert, what is wrong with the types of a call. This function is itself called in a
/// static_assert, before anything else can fail.
template <class Q, class K, class V>
constexpr bool check_types() {
  if constexpr (!Viewable<Q> || !Viewable<K> || !Viewable<V>) {
    return check_tensor<Q>() && check_tensor<K>() && check_tensor<V>();
  } else if constexpr (!check_scalar<typename Traits<Q>::Scalar>() || !check_scalar<typename Traits<K>::Scalar>() ||
                       !check_scalar<typename Traits<V>::Scalar>()) {
    return false;
  } else {
    using T = computed_t<typename Traits<Q>::Scalar>;
    constexpr int kRank = Traits<Q>::kRank;
    constexpr bool kSameScalar = std::is_same_v<T, computed_t<typename Traits<K>::Scalar>> &&
                                 std::is_same_v<T, computed_t<typename Traits<V>::Scalar>>;
    constexpr bool kIsRank = kRank == 2 || kRank == 4;
    constexpr bool kSameRank = kRank == Traits<K>::kRank && kRank == Traits<V>::kRank;
    static_assert(kSameScalar,
                  "attn: query, key and value must have the same scalar type (float and 16-bit floats may be mixed); "
                  "convert with .cast<float>() or .cast<double>()");
    static_assert(kIsRank,
                  "attn: query, key and value must be matrices (len, dim) or rank-4 tensors (batch, heads, len, dim); "
                  "for (batch, len, dim), pass t.unsqueeze(1)");
    static_assert(kSameRank || !kIsRank,
                  "attn: query, key and value must have the same rank, all matrices or all rank-4 tensors; view a "
                  "row-major matrix m as a tensor with attn::bhsd(m.data(), 1, 1, len, dim)");
    return kSameScalar && kIsRank && kSameRank;
  }
}

/// Query, key and value of a call as rank-4 views: of the caller's memory, or of an evaluated expression. A CallInputs
/// is never moved, because its views refer to it.
template <class Q, class K, class V>
class CallInputs {
 protected:
  static constexpr bool kIsCall = check_types<Q, K, V>();
  static_assert(kIsCall);

 private:
  const Held<Q> q_held_;
  const Held<K> k_held_;
  const Held<V> v_held_;

 public:
  using T = computed_t<typename Traits<Q>::Scalar>;

  CallInputs(const Q& query, const K& key, const V& value)
      : q_held_(evaluated(query)),
        k_held_(evaluated(key)),
        v_held_(evaluated(value)),
        q(as_rank4(view(q_held_))),
        k(as_rank4(view(k_held_))),
        v(as_rank4(view(v_held_))) {}
  CallInputs(const CallInputs&) = delete;

  const DTypeView<const T> q, k, v;
};

/// The sizes of an output that are known at compile time: those of an Eigen matrix with the query's rows and the
/// value's columns, if both are fixed and the output is small. The limit is needed because a fixed-size Eigen::Map may
/// be of any size.
template <class Q, class V>
struct FixedSizes {
  static constexpr bool kAre = false;
};
template <EigenDense Q, EigenDense V>
struct FixedSizes<Q, V> {
  static constexpr int kRows = Q::RowsAtCompileTime, kColumns = V::ColsAtCompileTime;
  static constexpr Index kMostBytes = 16 * 1024;  // far below Eigen's limit for objects on the stack
  static constexpr bool kAre = kRows > 0 && kColumns > 0 &&
                               Index(kRows) * kColumns* static_cast<Index>(sizeof(typename Q::Scalar)) <= kMostBytes;
  /// The storage order of the query, except that Eigen's vectors allow only one order.
  static constexpr bool kRowMajor = (Q::IsRowMajor && kColumns != 1) || (kRows == 1 && kColumns != 1);
};

/// An Eigen matrix that may carry more digits, as a Tensor may. It converts to its Matrix without these digits.
template <class Matrix>
class WithDigits : public Matrix {
 public:
  using Matrix::Matrix;
  WithDigits() = default;
  WithDigits(Matrix&& m) : Matrix(std::move(m)) {}  // NOLINT: the same matrix
  using Matrix::operator=;

 private:
  friend DigitsOf;
  [[no_unique_address]] DigitsBeside<typename Matrix::Scalar> digits_;
};
/// X if it can carry more digits itself, otherwise WithDigits<X>.
template <class X>
using with_digits_t = std::conditional_t<EigenDense<X>, WithDigits<X>, X>;

/// Whether an output may carry its unrounded values; see MoreDigits.
template <class Out>
constexpr bool is_rounded = !std::is_same_v<computed_t<typename Traits<std::remove_cvref_t<Out>>::Scalar>,
                                            typename Traits<std::remove_cvref_t<Out>>::Scalar> &&
                            !std::is_same_v<decltype(DigitsOf::get(std::declval<Out&>())), std::nullptr_t>;

/// The parts of the caller's log-sum-exps lost to rounding, to read and to write; empty if their type does not store
/// them.
template <class T, class Lse>
LseRests<T> rests_beside(const Lse& lse) {
  if constexpr (!std::is_same_v<decltype(DigitsOf::get(lse)), std::nullptr_t>)
    if (const auto& digits = *DigitsOf::get(lse); digits.data() && digits.size() == 2 * lse.size())
      return {lse.data(), digits.data(), digits.data() + lse.size()};
  return {};
}
template <class T, class Lse>
KeptLseRests<T> kept_rests_beside(Lse& lse) {
  if constexpr (std::is_same_v<decltype(DigitsOf::get(lse)), std::nullptr_t>)
    return {};
  else
    return {lse.data(), lse.size(), DigitsOf::get(lse)};
}

/// Memory for results: Eigen matrices in the query's storage order if the query is one, otherwise tensors. All hold the
/// query's scalar type, except log-sum-exps, which would lose too much in 16 bits. `V` is the value's type, if its
/// number of columns may fix the output's.
template <class Q, class V = void>
struct Answer {
  using T = typename Traits<Q>::Scalar;
  using Lse = computed_t<T>;
  using Fixed = FixedSizes<Q, V>;

  static auto out(const Problem& p) {
    if constexpr (Fixed::kAre)
      return Eigen::Matrix < T, Fixed::kRows, Fixed::kColumns,
             Fixed::kRowMajor ? Eigen::RowMajor : Eigen::ColMajor > ();
    else if constexpr (EigenDense<Q>)
      return Eigen::Matrix < T, Eigen::Dynamic, Eigen::Dynamic,
             Q::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor > (p.q_len, p.v_dim);
    else if constexpr (Traits<Q>::kRank == 2)
      return Tensor<T, 2>::uninitialized({p.q_len, p.v_dim});
    else
      return Tensor<T, 4>::uninitialized({p.batch, p.heads, p.q_len, p.v_dim});
  }
  /// Empty if there are no log-sum-exps.
  static auto lse(const Problem& p) {
    const Index rows = p.sigmoid_bias ? 0 : p.q_len;
    if constexpr (Fixed::kAre)
      return Eigen::Matrix<Lse, Eigen::Dynamic, 1, Eigen::ColMajor, Fixed::kRows, 1>(rows);  // stored inline
    else if constexpr (EigenDense<Q>)
      return Eigen::Matrix<Lse, Eigen::Dynamic, 1>(rows);
    else if constexpr (Traits<Q>::kRank == 2)
      return Tensor<Lse, 1>::uninitialized({rows});
    else
      return Tensor<Lse, 3>::uninitialized({p.batch, p.heads, rows});
  }
  static auto weights(const Problem& p) {
    if constexpr (EigenDense<Q>)
      return Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>(p.q_len, p.kv_len);
    else if constexpr (Traits<Q>::kRank == 2)
      return Tensor<T, 2>::uninitialized({p.q_len, p.kv_len});
    else
      return Tensor<T, 4>::uninitialized({p.batch, p.heads, p.q_len, p.kv_len});
  }

  /// A 16-bit output and log-sum-exps may carry more digits.
  static auto result_out(const Problem& p) {
    if constexpr (std::is_same_v<T, Lse>)
      return out(p);
    else
      return with_digits_t<decltype(out(p))>(out(p));
  }
  static auto result_lse(const Problem& p) { return with_digits_t<decltype(lse(p))>(lse(p)); }

  static auto result(const Problem& p) {
    return Result<decltype(result_out(p)), decltype(result_lse(p))>{result_out(p), result_lse(p)};
  }
  static auto naive_result(const Problem& p) {
    return NaiveResult<decltype(out(p)), decltype(result_lse(p)), decltype(weights(p))>{out(p), result_lse(p),
                                                                                        weights(p)};
  }
};

/// Number of dimensions of an argument; 0 if it is not a tensor.
template <class X>
constexpr int rank_of = [] {
  if constexpr (Viewable<X>)
    return Traits<std::remove_cvref_t<X>>::kRank;
  else
    return 0;
}();

template <class X>
constexpr bool has_rank_of_lse = rank_of<X> >= 1 && rank_of<X> <= 3;

/// Views an argument that is meant as a vector with rank 1: a tensor of rank 1, an Eigen row or column, any tensor with
/// one row or one column, or contiguous numbers such as a std::vector. `what` names it in messages.
template <class X>
auto vector_of(X&& x, const char* what) {
  if constexpr (Shapeless<std::remove_cvref_t<X>> && requires { x.data(); }) {
    return TensorView<std::remove_pointer_t<decltype(x.data())>, 1>(x.data(), {static_cast<Index>(x.size())});
  } else {
    const auto v = view(x);
    using View = TensorView<std::remove_pointer_t<decltype(v.data())>, 1>;
    static_assert(v.kRank <= 2, "attn: this argument must be a vector: a row, a column, or a tensor of rank 1");
    if constexpr (v.kRank == 2) {
      require(v.dim(0) == 1 || v.dim(1) == 1, what, " must be a vector, but has ", v.dim(0), " rows and ", v.dim(1),
              " columns");
      return View(v.data(), {v.size()}, {v.stride(v.dim(0) == 1 ? 1 : 0)});
    } else {
      return View(v);
    }
  }
}

/// Views a log-sum-exp argument as (batch, heads, q_len). The argument has rank 3, rank 1, or rank 2 with a dimension
/// of 1, like Eigen's vectors.
template <class X>
auto lse_rank3(X&& x) {
  constexpr int kRank = rank_of<X>;
  static_assert(!WholeResult<X>, "attn: this is the whole result of a call; pass its log-sum-exps, result.lse");
  static_assert(has_rank_of_lse<X> || WholeResult<X>,
                "attn: lse must be a vector (q_len) or a rank-3 tensor (batch, heads, q_len), as attention() returns "
                "it; to pass a tensor as a mod, use attn::keep(t) or attn::bias(t)");
  if constexpr (has_rank_of_lse<X>) {  // otherwise view() would fail with its own message
    auto v = view(x);
    using T = std::remove_pointer_t<decltype(v.data())>;
    if constexpr (kRank == 3) {
      return v;
    } else if constexpr (kRank == 2) {
      const auto row = vector_of(v, "lse");
      return TensorView<T, 3>(row.data(), {1, 1, row.size()}, {0, 0, row.stride(0)});
    } else {
      return TensorView<T, 3>(v.data(), {1, 1, v.dim(0)}, {0, 0, v.stride(0)});
    }
  } else {
    return TensorView<const float, 3>();
  }
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
