#include "same_bits.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tinystories {

namespace {

std::uint64_t hash_of(const Matrix& x) {
  std::uint64_t hash = 14695981039346656037u;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(x.data());
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.size()) * sizeof(float); ++i)
    hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

Index differing_rows(const Matrix& a, const Matrix& b) {
  Index count = 0;
  for (Index i = 0; i < a.rows(); ++i)
    count += std::memcmp(&a(i, 0), &b(i, 0), static_cast<std::size_t>(a.cols()) * sizeof(float)) != 0;
  return count;
}

class Methods {
 public:
  Methods(const Transformer& network, const Tokens& tokens, const attn::Options& options)
      : network_(network), tokens_(tokens), options_(options) {}

  Index length() const { return static_cast<Index>(tokens_.size()); }

  /// Feeds the text in chunks, in a batch of `batch` texts. The others are this text, shifted cyclically.
  Matrix in_chunks(Index chunk, CacheOptions cache) const {
    cache.capacity = length();
    Context context(network_.config(), cache);
    Matrix logits(length(), network_.config().vocab_size);
    for (Index first = 0; first < length(); first += chunk) {
      const Index count = std::min(chunk, length() - first);
      Tokens fed;
      for (Index text = 0; text < cache.batch; ++text)
        for (Index i = 0; i < count; ++i) fed.push_back(token(first + i + 11 * text));
      const Matrix states = network_.forward(fed, context, options_);
      logits.middleRows(first, count) = network_.logits(states, options_).topRows(count);
    }
    return logits;
  }

  /// Feeds the next token together with a draft of three more, keeps the correct tokens of the draft, and drops the
  /// others from the cache. Every second draft has wrong tokens.
  Matrix as_drafts() const {
    constexpr Index kDraft = 4;
    Context context(network_.config(), {.capacity = length() + kDraft});
    Matrix logits(length(), network_.config().vocab_size);
    for (Index first = 0, round = 0; first < length(); ++round) {
      const Index right = round % 2 == 0 ? kDraft : 1 + round % (kDraft - 1);
      Tokens fed;
      for (Index i = 0; i < kDraft; ++i) fed.push_back(token(first + i + (i < right ? 0 : 1)));
      const Index kept = std::min(right, length() - first);
      logits.middleRows(first, kept) =
          network_.logits(network_.forward(fed, context, options_), options_).topRows(kept);
      first += kept;
      context.truncate(first);
    }
    return logits;
  }

 private:
  Index token(Index i) const { return tokens_[static_cast<std::size_t>(i % length())]; }

  const Transformer& network_;
  const Tokens& tokens_;
  const attn::Options& options_;
};

}  // namespace

std::vector<LogitsOfMethod> logits_of_all_methods(const Transformer& network, const Tokens& tokens,
                                                  const attn::Options& options) {
  if (tokens.empty()) throw std::invalid_argument("logits_of_all_methods: there are no tokens");
  const Methods methods(network, tokens, options);
  const Matrix whole = methods.in_chunks(methods.length(), {});
  std::vector<LogitsOfMethod> all;
  const auto add = [&](std::string name, const Matrix& logits) {
    all.push_back({std::move(name), hash_of(logits), differing_rows(whole, logits)});
  };
  add("one prompt", whole);
  add("chunks of 7", methods.in_chunks(7, {}));
  add("token by token", methods.in_chunks(1, {}));
  add("pages of 16", methods.in_chunks(5, {.paged = true, .page_size = 16}));
  add("in a batch of three", methods.in_chunks(3, {.paged = true, .batch = 3}));
  add("drafts of 4, verified", methods.as_drafts());
  return all;
}

}  // namespace tinystories
