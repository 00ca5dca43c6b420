#include "hybrid_layers.h"

namespace nn {

namespace {

template <class T>
std::vector<HybridLayer<T, DeltaNet<T>>> make_delta_nets(const HybridConfig& c, Random& random) {
  std::vector<HybridLayer<T, DeltaNet<T>>> all;
  for (std::size_t i = 0; i < HybridBlock<T>::kDeltaNets; ++i)
    all.emplace_back(DeltaNet<T>(c.delta_net(), random), c.layer(), random);
  return all;
}

}  // namespace

template <class T>
HybridBlock<T>::HybridBlock(const HybridConfig& c, Random& random)
    : delta_nets_(make_delta_nets<T>(c, random)),
      attention_(GatedAttention<T>(c.attention(random.bits())), c.layer(), random) {}

template <class T>
States<T> HybridBlock<T>::operator()(States<T> x, Memories* memories, attn::KvLayer<T>* cache) const {
  for (std::size_t i = 0; i < kDeltaNets; ++i) x = delta_nets_[i](x, memories ? &(*memories)[i] : nullptr);
  return attention_(x, cache);
}

template <class T>
States<T> HybridBlock<T>::forward(States<T> x) {
  for (auto& layer : delta_nets_) x = layer.forward(std::move(x));
  return attention_.forward(std::move(x));
}

template <class T>
States<T> HybridBlock<T>::backward(States<T> grad) {
  grad = attention_.backward(std::move(grad));
  for (std::size_t i = kDeltaNets; i-- > 0;) grad = delta_nets_[i].backward(std::move(grad));
  return grad;
}

template <class T>
void HybridBlock<T>::visit(std::size_t first, const std::string& prefix, const Visitor<T>& visitor) {
  const auto name = [&](std::size_t layer) { return prefix + "layers." + std::to_string(first + layer) + "."; };
  for (std::size_t i = 0; i < kDeltaNets; ++i) delta_nets_[i].visit(name(i), visitor);
  attention_.visit(name(kDeltaNets), visitor);
}

template class HybridBlock<NN_SCALAR>;

}  // namespace nn
