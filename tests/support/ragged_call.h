// A call over several sequences, compared with the oracle, and with the definition on each sequence's plain tensors.
#pragma once

#include "tokens.h"

namespace attn::test {

/// The naive path with mods built from their meaning, so that all calls share one type.
template <class T>
Computed<T> naive_by_meaning(Arguments<T>& a, const Meaning& meaning, const Numbers& numbers = {}) {
  const Index first = numbers.first_position(a.sizes);
  const auto pair = [=](const Position& p) { return Pair{p.batch, p.head, p.q - first, p.q, p.kv}; };
  const auto keep = mask_mod([=](const Position& p) { return !meaning.keep || meaning.keep(pair(p)); });
  const auto score = score_mod([=](auto x, const Position& p) {
    return meaning.score ? static_cast<decltype(x)>(meaning.score(static_cast<Real>(x), pair(p))) : x;
  });
  std::vector<double> logits;
  for (Index h = 0; h < a.sizes.heads; ++h)
    logits.push_back(meaning.sink ? static_cast<double>(meaning.sink(h)) : -std::numeric_limits<double>::infinity());
  return naive(a, score | keep | sinks(logits), options_of(numbers));
}

/// `tokens[s]` are the sequences, `q[s]` the queries of each, (heads, q_lens[s], head_dim).
struct RaggedCall {
  Index heads;
  std::vector<Tokens> tokens;
  std::vector<Index> q_lens;
  std::vector<std::vector<double>> q;

  RaggedCall(Index heads_given, std::vector<Tokens> tokens_given, std::vector<Index> q_lens_given, Random& random)
      : heads(heads_given), tokens(std::move(tokens_given)), q_lens(std::move(q_lens_given)) {
    for (Index len : q_lens) q.push_back(random.values(heads * len * tokens[0].sizes().head_dim));
  }

  Index size() const { return static_cast<Index>(tokens.size()); }
  std::vector<Index> lengths() const {
    std::vector<Index> all;
    for (const Tokens& t : tokens) all.push_back(t.size());
    return all;
  }
  Sizes sizes(Index s) const {
    const TokenSizes& t = tokens[at(s)].sizes();
    return {1, heads, t.kv_heads, q_lens[at(s)], tokens[at(s)].size(), t.head_dim, t.v_dim};
  }
  Inputs inputs(Index s) const { return {sizes(s), q[at(s)], tokens[at(s)].keys(), tokens[at(s)].values()}; }

  template <class T>
  void round_queries_to() {
    for (auto& numbers : q)
      for (double& x : numbers) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
  }

  Index queries() const {
    Index total = 0;
    for (Index len : q_lens) total += len;
    return total;
  }
  /// The queries of all sequences packed back to back: (1, heads, queries(), head_dim).
  std::vector<double> packed_queries() const {
    std::vector<double> packed;
    for (Index h = 0; h < heads; ++h)
      for (std::size_t s = 0; s < q.size(); ++s) {
        const Index per_head = q_lens[s] * tokens[0].sizes().head_dim;
        packed.insert(packed.end(), q[s].begin() + h * per_head, q[s].begin() + (h + 1) * per_head);
      }
    return packed;
  }

  static std::size_t at(Index s) { return static_cast<std::size_t>(s); }
};

/// Queries and results of a call in separate memory.
template <class T>
struct RaggedMemory {
  Strided<T> q, out;
  Strided<Wide<T>> lse;  // rank 4, so that lse has strides as well

  explicit RaggedMemory(const RaggedCall& c, Layout layout = Layout::bhsd, Layout out_layout = Layout::bhsd)
      : q(layout, {1, c.heads, c.queries(), c.tokens[0].sizes().head_dim}, c.packed_queries()),
        out(out_layout, {1, c.heads, c.queries(), c.tokens[0].sizes().v_dim}),
        lse(out_layout, {1, c.heads, c.queries(), 1}) {}

  TensorView<Wide<T>, 3> lse3() {
    const auto lse4 = lse.view();
    return {lse4.data(), {1, lse4.dim(1), lse4.dim(2)}, {lse4.stride(0), lse4.stride(1), lse4.stride(2)}};
  }
  /// The results of all sequences, and of one.
  Computed<T> all() { return {out.read(), lse.read()}; }
  Computed<T> of(const RaggedCall& c, Index sequence) {
    EXPECT_TRUE(out.gaps_untouched() && lse.gaps_untouched());
    Index first = 0;
    for (Index s = 0; s < sequence; ++s) first += c.q_lens[RaggedCall::at(s)];
    const auto rows = [&](const auto& numbers, Index dim) {
      std::remove_cvref_t<decltype(numbers)> part;
      for (Index h = 0; h < c.heads; ++h) {
        const auto begin = numbers.begin() + (h * c.queries() + first) * dim;
        part.insert(part.end(), begin, begin + c.q_lens[RaggedCall::at(sequence)] * dim);
      }
      return part;
    };
    return {rows(out.read(), c.tokens[0].sizes().v_dim), rows(lse.read(), 1)};
  }
};

/// The meaning of a mod in a call over this sequence alone.
inline Meaning of_sequence(const Meaning& m, Index sequence) {
  Meaning own = m;
  const auto moved = [sequence](Pair p) {
    p.batch = sequence;
    return p;
  };
  if (m.keep) own.keep = [=](const Pair& p) { return m.keep(moved(p)); };
  if (m.score) own.score = [=](Real x, const Pair& p) { return m.score(x, moved(p)); };
  return own;
}

/// The expected results of a call, with the tolerance of point 9 of the contract.
template <class T>
class Expected {
 public:
  Expected(const RaggedCall& c, const Meaning& meaning, const Numbers& numbers = {}) : call_(c) {
    for (Index s = 0; s < c.size(); ++s) {
      const Inputs in = c.inputs(s);
      const Meaning own = of_sequence(meaning, s);
      Arguments<T> a(in);
      truth_.push_back(oracle(in, own, numbers));
      naive_.push_back(naive_by_meaning(a, own, numbers));
    }
  }

  void expect(RaggedMemory<T>& memory, Real lse_error = 0) const {
    for (Index s = 0; s < call_.size() && !::testing::Test::HasFailure(); ++s) {
      std::ostringstream text;
      text << "sequence " << s << ", " << call_.sizes(s);
      SCOPED_TRACE(text.str());
      expect_close(truth_[RaggedCall::at(s)], naive_[RaggedCall::at(s)], memory.of(call_, s), lse_error);
    }
  }

 private:
  const RaggedCall& call_;
  std::vector<Truth> truth_;
  std::vector<Computed<T>> naive_;
};

}  // namespace attn::test
