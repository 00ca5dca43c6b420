#include "hybrid.h"

#include "initial.h"

namespace nn {

template <class T>
Hybrid<T>::Hybrid(const HybridConfig& c, std::uint64_t seed)
    : config_(c),
      random_(seed),
      tokens_(c.tokens, c.features, kGptDeviation, random_),
      norm_(c.features, c.layer().norm) {
  for (Index i = 0; i < c.blocks; ++i) blocks_.emplace_back(c, random_);
}

template <class T>
States<T> Hybrid<T>::operator()(const Tokens& tokens) const {
  States<T> x = tokens_(tokens);
  for (const HybridBlock<T>& block : blocks_) x = block(std::move(x));
  return tokens_.project(norm_(x));
}

template <class T>
States<T> Hybrid<T>::forward(const Tokens& tokens) {
  States<T> x = tokens_.forward(tokens);
  for (HybridBlock<T>& block : blocks_) x = block.forward(std::move(x));
  return tokens_.forward_project(norm_.forward(x));
}

template <class T>
void Hybrid<T>::backward(const States<T>& grad_logits) {
  States<T> grad = norm_.backward(tokens_.backward_project(grad_logits));
  for (std::size_t i = blocks_.size(); i-- > 0;) grad = blocks_[i].backward(std::move(grad));
  tokens_.backward(grad);
}

template <class T>
void Hybrid<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  tokens_.visit(prefix + "tokens.", visitor);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].visit(i * (HybridBlock<T>::kDeltaNets + 1), prefix, visitor);
  norm_.visit(prefix + "norm.", visitor);
}

template class Hybrid<NN_SCALAR>;

}  // namespace nn
