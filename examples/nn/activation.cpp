#include "activation.h"

#include <cmath>
#include <numbers>

#include "threads.h"

namespace nn {

namespace {

constexpr Index kRows = 16;  // per block

/// Calls f(row of x, row of y, index) for all tokens, on all threads.
template <class X, class Y, class F>
void for_rows(const X& x, Y& y, const F& f) {
  const auto from = rows_of(x);
  auto to = rows_of(y);
  for_blocks(from.rows(), kRows, static_cast<double>(x.dim(2)), [&](Index first, Index last) {
    for (Index i = first; i < last; ++i) f(from.row(i).array(), to.row(i).array(), i);
  });
}

/// tanh of the GELU's argument, sqrt(2 / pi) * (x + 0.044715 x³).
template <class T, class X>
auto gelu_tanh(const X& x) {
  const T a = static_cast<T>(std::sqrt(2 / std::numbers::pi)), b = a * T(0.044715);
  return (x * (a + b * x.square())).tanh();
}

}  // namespace

template <class T>
States<T> Activation<T>::apply(const States<T>& x, States<T>* inner) const {
  const Index features = x.dim(2) / inputs_of(kind_, 1);
  States<T> y = with_features(x, features);
  // If the inner values are not kept, the result's memory holds them temporarily.
  States<T>& kept = inner ? *inner : y;
  switch (kind_) {
    case ActivationKind::relu:
      for_rows(x, y, [](const auto& in, auto out, Index) { out = in.max(T(0)); });
      break;
    case ActivationKind::gelu:
      for_rows(x, y, [&](const auto& in, auto out, Index i) {
        auto tanh = rows_of(kept).row(i).array();
        tanh = gelu_tanh<T>(in);
        out = T(0.5) * in * (1 + tanh);
      });
      break;
    case ActivationKind::swiglu:
      for_rows(x, y, [&](const auto& in, auto out, Index i) {
        auto sigmoid = rows_of(kept).row(i).array();
        sigmoid = 1 / (1 + (-in.head(features)).exp());
        out = in.head(features) * sigmoid * in.tail(features);
      });
      break;
  }
  return y;
}

template <class T>
States<T> Activation<T>::operator()(const States<T>& x) const {
  return apply(x, nullptr);
}

template <class T>
States<T> Activation<T>::forward(States<T> x) {
  x_ = std::move(x);
  if (kind_ == ActivationKind::relu) return apply(x_, nullptr);
  inner_ = with_features(x_, x_.dim(2) / inputs_of(kind_, 1));
  return apply(x_, &inner_);
}

template <class T>
States<T> Activation<T>::backward(const States<T>& grad) const {
  States<T> grad_x = with_features(x_, x_.dim(2));
  const auto grads = rows_of(grad);
  switch (kind_) {
    case ActivationKind::relu:
      for_rows(x_, grad_x,
               [&](const auto& in, auto out, Index i) { out = (in > T(0)).select(grads.row(i).array(), T(0)); });
      break;
    case ActivationKind::gelu:
      for_rows(x_, grad_x, [&](const auto& in, auto out, Index i) {
        const T a = static_cast<T>(std::sqrt(2 / std::numbers::pi)), b = 3 * a * T(0.044715);
        const auto tanh = rows_of(inner_).row(i).array();
        out = grads.row(i).array() * T(0.5) * (1 + tanh) * (1 + in * (1 - tanh) * (a + b * in.square()));
      });
      break;
    case ActivationKind::swiglu:
      for_rows(x_, grad_x, [&](const auto& in, auto out, Index i) {
        const Index features = grad.dim(2);
        const auto a = in.head(features), b = in.tail(features);
        const auto g = grads.row(i).array();
        const auto sigmoid = rows_of(inner_).row(i).array();
        out.head(features) = g * b * sigmoid * (1 + a * (1 - sigmoid));
        out.tail(features) = g * a * sigmoid;
      });
      break;
  }
  return grad_x;
}

template class Activation<NN_SCALAR>;

}  // namespace nn
