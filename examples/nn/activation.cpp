#include "activation.h"

#include <cmath>
#include <numbers>

#include "threads.h"

namespace nn {

namespace {

constexpr Index kRows = 32;  // a block

/// Calls f(row of x, row of y) for all tokens, on all threads.
template <class X, class Y, class F>
void for_rows(const X& x, Y& y, const F& f) {
  const auto from = rows_of(x);
  auto to = rows_of(y);
  for_blocks(from.rows(), kRows, [&](Index first, Index last) {
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
States<T> activate(Activation activation, const States<T>& x) {
  const Index features = x.dim(2) / inputs_of(activation, 1);
  States<T> y = with_features(x, features);
  switch (activation) {
    case Activation::relu:
      for_rows(x, y, [](const auto& in, auto out, Index) { out = in.max(T(0)); });
      break;
    case Activation::gelu:
      for_rows(x, y, [](const auto& in, auto out, Index) { out = T(0.5) * in * (1 + gelu_tanh<T>(in)); });
      break;
    case Activation::swiglu:
      for_rows(x, y, [&](const auto& in, auto out, Index) {
        const auto a = in.head(features), b = in.tail(features);
        out = a / (1 + (-a).exp()) * b;
      });
      break;
  }
  return y;
}

template <class T>
States<T> activation_gradient(Activation activation, const States<T>& x, const States<T>& grad) {
  States<T> grad_x = with_features(x, x.dim(2));
  const auto grads = rows_of(grad);
  switch (activation) {
    case Activation::relu:
      for_rows(x, grad_x,
               [&](const auto& in, auto out, Index i) { out = (in > T(0)).select(grads.row(i).array(), T(0)); });
      break;
    case Activation::gelu:
      for_rows(x, grad_x, [&](const auto& in, auto out, Index i) {
        const T a = static_cast<T>(std::sqrt(2 / std::numbers::pi)), b = 3 * a * T(0.044715);
        const Eigen::Array<T, 1, Eigen::Dynamic> tanh = gelu_tanh<T>(in);
        out = grads.row(i).array() * T(0.5) * (1 + tanh) * (1 + in * (1 - tanh) * (a + b * in.square()));
      });
      break;
    case Activation::swiglu:
      for_rows(x, grad_x, [&](const auto& in, auto out, Index i) {
        const Index features = grad.dim(2);
        const auto a = in.head(features), b = in.tail(features), g = grads.row(i).array();
        const Eigen::Array<T, 1, Eigen::Dynamic> sigmoid = 1 / (1 + (-a).exp());
        out.head(features) = g * b * sigmoid * (1 + a * (1 - sigmoid));
        out.tail(features) = g * a * sigmoid;
      });
      break;
  }
  return grad_x;
}

template States<NN_SCALAR> activate(Activation, const States<NN_SCALAR>&);
template States<NN_SCALAR> activation_gradient(Activation, const States<NN_SCALAR>&, const States<NN_SCALAR>&);

}  // namespace nn
