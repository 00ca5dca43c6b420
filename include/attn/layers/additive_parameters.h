// The parameters of an additive score, checked and copied into contiguous memory.
#pragma once

#include "attn/additive_score.h"
#include "attn/core/base/check.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A parameter copied into a contiguous tensor of T, (heads, rows, columns). of(head) is the parameter of one head. The
/// copy is cheap: parameters are small compared to the tensors that are multiplied by them.
template <class T>
class HeadParameter {
 public:
  HeadParameter() = default;
  HeadParameter(Index heads, Index rows, Index columns) : numbers_({heads, rows, columns}) {}

  template <int kRank>
  explicit HeadParameter(const ScoreParameter<const T, kRank>& given) {
    if (!given.is_given()) return;
    numbers_ = Tensor<T, 3>::uninitialized({given.heads(), given.rows(), given.columns()});
    for (Index h = 0; h < heads(); ++h)
      for (Index i = 0; i < given.rows(); ++i)
        for (Index j = 0; j < given.columns(); ++j) numbers_(h, i, j) = load_number<T>(given.tensor().rows(0, h), i, j);
  }

  bool is_given() const { return numbers_.size() > 0; }
  Index heads() const { return numbers_.dim(0); }
  Index size_of_head() const { return numbers_.dim(1) * numbers_.dim(2); }
  /// Elements from one head to the next; 0 if heads share the parameter.
  Index stride() const { return heads() == 1 ? 0 : size_of_head(); }
  T* of(Index head) { return numbers_.data() + head * stride(); }
  const T* of(Index head) const { return numbers_.data() + head * stride(); }
  const Tensor<T, 3>& numbers() const { return numbers_; }
  Tensor<T, 3>& numbers() { return numbers_; }

  /// Adds these values to the caller's parameter, if there is one.
  template <int kRank>
  void add_to(const ScoreParameter<T, kRank>& sum) const {
    if (!sum.is_given()) return;
    for (Index h = 0; h < heads(); ++h)
      for (Index i = 0; i < sum.rows(); ++i)
        for (Index j = 0; j < sum.columns(); ++j) {
          const RowsToWrite rows = sum.tensor().rows(0, h);
          store_number<T>(rows, i, j, load_number<T>(RowsToRead(rows), i, j) + numbers_(h, i, j));
        }
  }

 private:
  Tensor<T, 3> numbers_;
};

/// The parameters of a call, and the sizes that they were checked against.
template <class T>
struct AdditiveParameters {
  Index heads, kv_heads, head_dim, key_dim, hidden;
  T scale;  ///< of the scores
  HeadParameter<T> query_weight, key_weight, score_weight, bias;

  /// @throws std::invalid_argument if a parameter does not fit queries (batch, heads, q_len, head_dim) and keys
  /// (batch, kv_heads, kv_len, key_dim).
  AdditiveParameters(const AdditiveScore<T>& score, const Shape<4>& q, const Shape<4>& k, double given_scale)
      : heads(q[1]), kv_heads(k[1]), head_dim(q[3]), key_dim(k[3]), scale(static_cast<T>(given_scale)) {
    require(score.score_weight.is_given(), "an additive score needs a score_weight (hidden), but has none");
    hidden = score.score_weight.columns();
    require(hidden > 0, "score_weight must have at least one element, but has ", hidden);
    const auto check_heads = [](const char* name, Index of, Index have, const char* have_name) {
      require(of == 1 || of == have, name, " has ", of, " heads, but ", have_name, " is ", have,
              "; give one for all heads, or one per head");
    };
    check_heads("score_weight", score.score_weight.heads(), heads, "heads");
    const auto check_weight = [&](const char* name, const auto& weight, Index of, const char* of_name, Index features,
                                  const char* features_name) {
      if (weight.is_given()) {
        require(weight.rows() == hidden && weight.columns() == features, name, " has shape (", weight.rows(), ", ",
                weight.columns(), "), expected (", hidden, ", ", features, ") as (hidden, features): score_weight has ",
                hidden, " elements, and ", features_name, " has ", features, " features");
        check_heads(name, weight.heads(), of, of_name);
      } else {
        require(features == hidden, features_name, " has ", features, " features, but without ", name,
                " it must have one per element of score_weight, ", hidden);
      }
    };
    require(head_dim > 0 && key_dim > 0, "queries and keys must have at least one feature, but have ", head_dim,
            " and ", key_dim);
    check_weight("query_weight", score.query_weight, heads, "heads", head_dim, "query");
    check_weight("key_weight", score.key_weight, kv_heads, "kv_heads", key_dim, "key");
    if (score.bias.is_given()) {
      require(score.bias.columns() == hidden, "bias has ", score.bias.columns(), " elements, but score_weight has ",
              hidden);
      check_heads("bias", score.bias.heads(), heads, "heads");
    }
    query_weight = HeadParameter<T>(score.query_weight);
    key_weight = HeadParameter<T>(score.key_weight);
    score_weight = HeadParameter<T>(score.score_weight);
    bias = HeadParameter<T>(score.bias);
  }

  Index kv_head(Index head) const { return head / (heads / kv_heads); }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
