#include "linear.h"

#include <cmath>

#include "threads.h"

namespace nn {

template <class T>
Linear<T>::Linear(Index inputs, Index outputs, bool bias, Random& random) : weight_({outputs, inputs}) {
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  const auto draw = [&](auto& values) {
    for (Index i = 0; i < values.size(); ++i) values.data()[i] = static_cast<T>(bound * (2 * random.uniform() - 1));
  };
  draw(weight_.values);
  if (!bias) return;
  bias_ = Learned<T, 1>({outputs});
  draw(bias_.values);
}

template <class T>
States<T> Linear<T>::operator()(const States<T>& x) const {
  States<T> y = with_features(x, weight_.values.dim(0));
  if (bias_.values.size() > 0)
    attn::linear_into(y, x, weight_.values, bias_.values, options());
  else
    attn::linear_into(y, x, weight_.values, options());
  return y;
}

template <class T>
States<T> Linear<T>::forward(States<T> x) {
  x_ = std::move(x);
  return (*this)(x_);
}

template <class T>
States<T> Linear<T>::backward(const States<T>& grad) {
  if (bias_.values.size() > 0)
    attn::add_linear_gradients(weight_.gradient, bias_.gradient, x_, grad, options());
  else
    attn::add_linear_gradients(weight_.gradient, x_, grad, options());
  States<T> grad_x = with_features(x_, weight_.values.dim(1));
  attn::linear_gradient_into(grad_x, grad, weight_.values, options());
  return grad_x;
}

template <class T>
void Linear<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  weight_.visit(prefix + "weight", visitor);
  bias_.visit(prefix + "bias", visitor);
}

template class Linear<NN_SCALAR>;

}  // namespace nn
