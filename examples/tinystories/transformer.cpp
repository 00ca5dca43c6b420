#include "transformer.h"

#include <stdexcept>
#include <string>

#include <attn/mods/causal.h>

#include "layers.h"

namespace tinystories {

namespace {

/// A contiguous sequence is one page of its whole capacity.
attn::KvCachesConfig caches_of(const Config& config, const CacheOptions& options) {
  const Index page_size = options.paged ? options.page_size : options.capacity;
  const auto pages_for = [&](Index tokens) { return (tokens + page_size - 1) / page_size; };
  // All networks of llama2.c use this rotary embedding.
  const attn::Rope rope({.head_dim = config.head_dim(), .pairs = attn::RopePairs::interleaved, .base = 10000});
  return {.layers = config.n_layers,
          .kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim(),
          .pages = options.batch * (pages_for(options.capacity) + pages_for(options.sinks)),
          .page_size = page_size,
          .rope = rope,
          .window = options.window,
          .sinks = options.sinks};
}

}  // namespace

Context::Caches Context::make(const Config& config, const CacheOptions& options) {
  const attn::KvCachesConfig sizes = caches_of(config, options);
  switch (options.type) {
    case CacheType::f32:
      return attn::KvCaches<float>(sizes);
    case CacheType::bf16:
      return attn::KvCaches<Eigen::bfloat16>(sizes);
    case CacheType::f8:
      return attn::KvCaches<attn::Float8E4M3>(sizes);
    case CacheType::i8:
      return attn::KvCaches<std::int8_t>(sizes);
    case CacheType::i4:
      return attn::KvCaches<attn::Int4>(sizes);
  }
  throw std::invalid_argument("unknown type of cache");
}

Context::Context(const Config& config, const CacheOptions& options)
    : capacity_(options.capacity), has_window_(options.window > 0), caches_(make(config, options)) {
  std::visit(
      [&](auto& caches) {
        for (Index i = 0; i < options.batch; ++i) sequences_.push_back(caches.add());
      },
      caches_);
}

void Context::truncate(Index length) {
  std::visit(
      [&](auto& caches) {
        for (const Index sequence : sequences_) caches.truncate(sequence, length);
      },
      caches_);
}

void Context::accept(std::span<const Index> path) {
  std::visit(
      [&](auto& caches) {
        for (const Index sequence : sequences_) caches.accept(sequence, path);
      },
      caches_);
}

Matrix Transformer::forward(std::span<const Index> tokens, Context& context, const attn::Options& options,
                            const Observer& observer, std::span<const Index> parents) const {
  const Index all = static_cast<Index>(tokens.size()), n = all / context.batch();
  if (all % context.batch() != 0)
    throw std::invalid_argument("forward: " + std::to_string(all) + " tokens for " + std::to_string(context.batch()) +
                                " sequences");
  if (n == 0 || !context.has_space(n))
    throw std::invalid_argument("forward: " + std::to_string(n) + " tokens after " + std::to_string(context.length()) +
                                " do not fit in a context of " + std::to_string(context.capacity()));
  Matrix x = embedded(tokens), states;
  const auto drafts = attn::tree(parents);
  context.step(n, parents, [&](const auto& step) {
    for (Index l = 0; l < config().n_layers; ++l) {
      if (parents.empty())
        attend(x, l, context, step, attn::causal(), options, observer);
      else
        attend(x, l, context, step, drafts, options, observer);
      const LayerWeights weights = checkpoint_.layer(l);
      x += feed_forward(rms_norm(x, weights.rms_ffn), weights.w1, weights.w2, weights.w3, options);
    }
    states = rms_norm(x, checkpoint_.rms_final());
  });
  return states;
}

Matrix Transformer::logits(const Matrix& states, const attn::Options& options) const {
  return linear(states, checkpoint_.classifier(), options);
}

template <class Step, class Mask>
void Transformer::attend(Matrix& x, Index layer, const Context& context, const Step& step, const Mask& mask,
                         const attn::Options& options, const Observer& observer) const {
  const Config& c = config();
  const LayerWeights weights = checkpoint_.layer(layer);
  const Index batch = context.batch(), n = x.rows() / batch, first = context.length();
  const Matrix normalised = rms_norm(x, weights.rms_att);
  const Matrix q = linear(normalised, weights.wq, options);
  const Matrix k = linear(normalised, weights.wk, options);
  const Matrix v = linear(normalised, weights.wv, options);
  Matrix out(x.rows(), c.dim);

  const auto heads = [&](const Matrix& rows, Index count) {
    return attn::bshd(rows.data(), batch, n, count, c.head_dim());
  };
  auto cache = step.layer(layer);
  cache.append(heads(k, c.n_kv_heads), heads(v, c.n_kv_heads));
  attn::attention_into(attn::bshd(out.data(), batch, n, c.n_heads, c.head_dim()), heads(q, c.n_heads), cache, mask,
                       options);
  if (observer)
    observer(
        {layer, first, heads(q, c.n_heads), heads(k, c.n_kv_heads), heads(v, c.n_kv_heads), heads(out, c.n_heads)});
  x += linear(out, weights.wo, options);
}

Matrix Transformer::embedded(std::span<const Index> tokens) const {
  const MatrixView embedding = checkpoint_.embedding();
  Matrix x(static_cast<Index>(tokens.size()), config().dim);
  for (Index i = 0; i < x.rows(); ++i) {
    const Index token = tokens[static_cast<std::size_t>(i)];
    if (token < 0 || token >= embedding.rows())
      throw std::out_of_range("token " + std::to_string(token) + " is out of range 0.." +
                              std::to_string(embedding.rows() - 1));
    x.row(i) = embedding.row(token);
  }
  return x;
}

}  // namespace tinystories
