#include "embedding.h"

#include <cmath>
#include <stdexcept>

#include "threads.h"

namespace nn {

namespace {

template <class T>
void draw_normal(attn::Tensor<T, 2>& values, double deviation, Random& random) {
  for (Index i = 0; i < values.size(); ++i) values.data()[i] = static_cast<T>(deviation * random.normal());
}

/// Returns a row of a table.
template <class T>
auto row_of(attn::Tensor<T, 2>& table, Index i) {
  return Eigen::Map<Row<T>>(table.data() + i * table.dim(1), table.dim(1));
}
template <class T>
auto row_of(const attn::Tensor<T, 2>& table, Index i) {
  return Eigen::Map<const Row<T>>(table.data() + i * table.dim(1), table.dim(1));
}

}  // namespace

template <class T>
Embedding<T>::Embedding(Index tokens, Index features, double deviation, Random& random) : weight_({tokens, features}) {
  draw_normal(weight_.values, deviation, random);
}

template <class T>
States<T> Embedding<T>::operator()(const Tokens& tokens) const {
  auto x = States<T>::uninitialized({tokens.dim(0), tokens.dim(1), features()});
  auto rows = rows_of(x);
  for (Index i = 0; i < tokens.size(); ++i) {
    const Index token = tokens.data()[i];
    if (token < 0 || token >= this->tokens())
      throw std::out_of_range("token " + std::to_string(token) + " is out of range; the table has " +
                              std::to_string(this->tokens()));
    rows.row(i) = row_of(weight_.values, token);
  }
  return x;
}

template <class T>
States<T> Embedding<T>::forward(const Tokens& tokens) {
  seen_ = tokens;
  return (*this)(tokens);
}

template <class T>
void Embedding<T>::backward(const States<T>& grad) {
  const auto rows = rows_of(grad);
  for (Index i = 0; i < seen_.size(); ++i) row_of(weight_.gradient, seen_.data()[i]) += rows.row(i);
}

template <class T>
States<T> Embedding<T>::project(const States<T>& x) const {
  States<T> logits = with_features(x, tokens());
  attn::linear_into(logits, x, weight_.values, options());
  return logits;
}

template <class T>
States<T> Embedding<T>::forward_project(States<T> x) {
  projected_ = std::move(x);
  return project(projected_);
}

template <class T>
States<T> Embedding<T>::backward_project(const States<T>& grad_logits) {
  attn::add_linear_gradients(weight_.gradient, projected_, grad_logits, options());
  States<T> grad_x = with_features(projected_, features());
  attn::linear_gradient_into(grad_x, grad_logits, weight_.values, options());
  return grad_x;
}

template <class T>
void Embedding<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  weight_.visit(prefix + "weight", visitor);
}

template <class T>
LearnedPositions<T>::LearnedPositions(Index positions, Index features, double deviation, Random& random)
    : weight_({positions, features}) {
  draw_normal(weight_.values, deviation, random);
}

template <class T>
void LearnedPositions<T>::add_to(States<T>& x, Index first) const {
  if (first < 0 || first + x.dim(1) > positions())
    throw std::out_of_range("positions " + std::to_string(first) + " to " + std::to_string(first + x.dim(1) - 1) +
                            " are out of range; the table has " + std::to_string(positions()));
  auto rows = rows_of(x);
  for (Index i = 0; i < rows.rows(); ++i) rows.row(i) += row_of(weight_.values, first + i % x.dim(1));
}

template <class T>
void LearnedPositions<T>::backward(const States<T>& grad) {
  const auto rows = rows_of(grad);
  for (Index i = 0; i < rows.rows(); ++i) row_of(weight_.gradient, i % grad.dim(1)) += rows.row(i);
}

template <class T>
void LearnedPositions<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  weight_.visit(prefix + "weight", visitor);
}

template <class T>
void add_sinusoidal_positions(States<T>& x, Index first) {
  const Index features = x.dim(2);
  RowMatrix<T> table(x.dim(1), features);
  for (Index i = 0; i < table.rows(); ++i)
    for (Index f = 0; f < features; ++f) {
      const double frequency = std::pow(10000.0, -static_cast<double>(f - f % 2) / static_cast<double>(features));
      const double angle = static_cast<double>(first + i) * frequency;
      table(i, f) = static_cast<T>(f % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  auto rows = rows_of(x);
  for (Index b = 0; b < x.dim(0); ++b) rows.middleRows(b * x.dim(1), x.dim(1)) += table;
}

template <class T>
States<T> scaled(States<T> x) {
  rows_of(x) *= static_cast<T>(std::sqrt(static_cast<double>(x.dim(2))));
  return x;
}

template <class T>
States<T> at_positions(States<T> tokens, Index first) {
  States<T> x = scaled(std::move(tokens));
  add_sinusoidal_positions(x, first);
  return x;
}

template class Embedding<NN_SCALAR>;
template class LearnedPositions<NN_SCALAR>;
template void add_sinusoidal_positions(States<NN_SCALAR>&, Index);
template States<NN_SCALAR> scaled(States<NN_SCALAR>);
template States<NN_SCALAR> at_positions(States<NN_SCALAR>, Index);

}  // namespace nn
