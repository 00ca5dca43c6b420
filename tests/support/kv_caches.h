// Helpers of the tests of KvCaches: comparing a layer with a plain list of tokens, and a mod that throws.
#pragma once

#include <stdexcept>

#include "tokens.h"

namespace attn::test {

/// What a mod throws in the middle of a step.
struct ModError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline auto failing() {
  return score_mod([](auto x, auto) -> decltype(x) { throw ModError("while attending"); });
}

/// The scales of one layer, where holds() looks for them.
template <class T>
struct Scales {
  const KvCaches<T>& caches;
  Index layer;
  auto key_scales() const { return caches.key_scales(layer); }
  auto value_scales() const { return caches.value_scales(layer); }
};

/// Whether a layer holds these tokens of a sequence.
template <class T>
::testing::AssertionResult holds(const KvCaches<T>& caches, Index layer, Index sequence, const Tokens& tokens) {
  if (caches.length(sequence) != tokens.size())
    return ::testing::AssertionFailure() << "sequence " << sequence << " has " << caches.length(sequence)
                                         << " tokens instead of " << tokens.size();
  const Index size = caches.config().page_size;
  for (Index i = 0; i < tokens.size(); ++i) {
    const Index page = caches.table(sequence)[static_cast<std::size_t>(i / size)];
    if (!holds(Scales<T>{caches, layer}, caches.key_pages(layer), caches.value_pages(layer), page, i % size, page,
               tokens, i))
      return ::testing::AssertionFailure() << "token " << i << " of sequence " << sequence << " differs";
  }
  return ::testing::AssertionSuccess();
}

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace attn::test
