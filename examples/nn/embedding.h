// Embeddings of tokens and of positions.
#pragma once

#include "parameter.h"
#include "random.h"

namespace nn {

/// A learned vector for each token, PyTorch's nn.Embedding. The same table can be the output layer, which scores every
/// token by its vector (Press & Wolf 2017): project().
template <class T>
class Embedding {
 public:
  /// Draws the initial values from a normal distribution of the given standard deviation.
  Embedding(Index tokens, Index features, double deviation, Random& random);

  Index tokens() const { return weight_.values.dim(0); }
  Index features() const { return weight_.values.dim(1); }

  /// Returns the vectors of tokens, (batch, len, features). @throws std::out_of_range for a token that is not in the
  /// table.
  States<T> operator()(const Tokens& tokens) const;
  States<T> forward(const Tokens& tokens);
  void backward(const States<T>& grad);

  /// Returns the scores of all tokens: logits = x * weightᵀ, (batch, len, tokens).
  States<T> project(const States<T>& x) const;
  States<T> forward_project(States<T> x);
  States<T> backward_project(const States<T>& grad_logits);

  /// Visits "weight" (tokens, features).
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  Learned<T, 2> weight_;
  Tokens seen_;
  States<T> projected_;
};

/// A learned vector for each position, which is added to the states of the tokens (Gehring et al. 2017).
template <class T>
class LearnedPositions {
 public:
  LearnedPositions(Index positions, Index features, double deviation, Random& random);

  Index positions() const { return weight_.values.dim(0); }

  /// Adds the vectors of positions: token i of each sequence is at position first + i. @throws std::out_of_range for
  /// positions that are not in the table.
  void add_to(States<T>& x, Index first = 0) const;
  void backward(const States<T>& grad);

  /// Visits "weight" (positions, features).
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  Learned<T, 2> weight_;
};

/// Adds sines and cosines of each token's position p (Vaswani et al. 2017, section 3.5): feature 2i gets
/// sin(p / 10000^(2i / features)), feature 2i + 1 the cosine. Token i of each sequence is at position first + i.
template <class T>
void add_sinusoidal_positions(States<T>& x, Index first = 0);

/// Returns x times the square root of its number of features, which makes token vectors as large as sinusoidal
/// positions (Vaswani et al. 2017, section 3.4).
template <class T>
States<T> scaled(States<T> x);

/// Scales token vectors and adds sinusoidal positions from `first` on.
template <class T>
States<T> at_positions(States<T> tokens, Index first = 0);

}  // namespace nn
