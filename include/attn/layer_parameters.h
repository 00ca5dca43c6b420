// The parameters of a layer and their gradients, by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/layers/multi_head_parameters.h"

namespace attn::inline ATTN_BUILT_FOR {

/// What layers with named parameters share: their parameters and gradients can be read and written by name.
/// `Owned` are the layer's configuration and parameters.
template <class T, class Owned>
class LayerParameters {
  static_assert(
      detail::is_scalar<T>,
      "attn: T of a layer such as MultiHeadAttention<T> must be float, double, long double or a 16-bit float");

 public:
  /// The names of the parameters of this configuration.
  std::vector<std::string> parameter_names() const { return parameters_.named().names(); }

  /// A view of a weight (outputs, inputs), to read or write it in place. Valid until the layer is destroyed or assigned
  /// to. @throws std::invalid_argument for an unknown name; the message lists the known ones.
  TensorView<T, 2> weight(std::string_view name) { return parameters_.named().weight(name); }
  /// A view of a weight, read-only.
  TensorView<const T, 2> weight(std::string_view name) const { return parameters_.named().weight(name); }
  /// A view of a bias (outputs), or of another vector such as the weight of a norm, to read or write it in place; see
  /// weight().
  TensorView<T, 1> bias(std::string_view name) { return parameters_.named().bias(name); }
  /// A view of a bias, read-only.
  TensorView<const T, 1> bias(std::string_view name) const { return parameters_.named().bias(name); }

  /// Copies a parameter from anything attn::view takes, or an Eigen expression, of any floating-point type.
  /// @throws std::invalid_argument for an unknown name or a wrong shape; the message gives the known names or both
  /// shapes.
  template <class X>
  void load(std::string_view name, const X& values) {
    parameters_.named().load(name, values);
  }
  /// Copies `values` into the rows of a parameter from row `first` on; otherwise like load().
  template <class X>
  void load_rows(std::string_view name, Index first, const X& values) {
    parameters_.named().load_rows(name, first, values);
  }

  /// The gradient of a weight, summed over all calls of backward() since zero_gradients(), to read or write in place.
  /// Names are those of weight(). The first backward() allocates memory for all gradients.
  /// @throws std::invalid_argument before the first backward(), or for an unknown name.
  TensorView<detail::computed_t<T>, 2> weight_gradient(std::string_view name) { return gradients().weight(name); }
  /// The gradient of a bias; see weight_gradient().
  TensorView<detail::computed_t<T>, 1> bias_gradient(std::string_view name) { return gradients().bias(name); }

  /// Sets the gradients of all parameters to 0, if there are any, and keeps their memory.
  void zero_gradients() { gradients_.set_zero(); }

  /// Calls visit(name, values, gradient) for each of parameter_names(), for example to take a step of an optimiser.
  /// `values` and `gradient` are row-major spans of all elements; `gradient` is empty before the first backward().
  ///
  ///     mha.for_each_parameter([](const std::string&, std::span<float> w, std::span<const float> grad) {
  ///       for (std::size_t i = 0; i < grad.size(); ++i) w[i] -= 0.1f * grad[i];
  ///     });
  template <class Visit>
  void for_each_parameter(const Visit& visit) {
    for (const std::string& name : parameter_names())
      visit(name, parameters_.named().numbers(name),
            gradients_.empty() ? std::span<Number>() : gradients_.numbers(name));
  }

 protected:
  /// Constructs the parameters, which check the configuration.
  template <class Config>
  explicit LayerParameters(const Config& config) : parameters_(config) {}

  Owned parameters_;                                     ///< the configuration and the parameters
  detail::Parameters<detail::computed_t<T>> gradients_;  ///< of the parameters; none before the first backward()

 private:
  using Number = detail::computed_t<T>;

  detail::Parameters<Number>& gradients() {
    detail::require(!gradients_.empty(), "there are no gradients before the first backward()");
    return gradients_;
  }
};

}  // namespace attn::inline ATTN_BUILT_FOR
