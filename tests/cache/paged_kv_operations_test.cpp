// Random operations on the paged cache, with and without a window, each compared with a plain model.
#include <iostream>

#include "support/paged_model.h"
#include "support/ragged_call.h"
#include "support/sample.h"

namespace attn::test {
namespace {

constexpr int kSeeds = 100, kOperations = 1000;  // for each of the three scalars

PagedKvCacheConfig drawn_config(Random& random) {
  PagedKvCacheConfig c;
  c.page_size = random.pick(std::vector<Index>{1, 2, 3, 4, 5, 6, 7, 8, 64});
  c.pages = c.page_size == 64 ? random.integer(3, 6) : random.integer(10, 40);
  c.kv_heads = random.integer(1, 2);
  c.head_dim = random.integer(4, 8);
  c.v_dim = random.integer(4, 8);
  if (random.chance(0.5)) c.window = random.integer(1, 8);
  return c;
}

/// A score mod that depends on the positions of keys, which a window must not change.
auto thirds() {
  return score_mod([](auto x, const Position& p) { return x + (p.kv % 3 == 0); });
}

template <class T>
class Trial {
 public:
  explicit Trial(std::uint64_t seed) : random_(seed), model_(drawn_config(random_)) {}

  void run() {
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      model_.expect_sound();
      if (i % 20 == 0) model_.expect_contents();
    }
    model_.expect_contents();
    for (Index id : ids()) model_.release(id);
    EXPECT_EQ(model_.cache.free_pages(), model_.cache.pages());
  }

  Index refusals() const { return refusals_; }
  Index attended() const { return attended_; }

 private:
  void operate() {
    const std::vector<Index> known = ids();
    const Index kind = random_.integer(0, 99);
    if (known.empty() || (kind < 8 && known.size() < 12)) {
      model_.add();
    } else if (kind < 18) {
      if (known.size() < 12) fork(random_.pick(known));
    } else if (kind < 25) {
      model_.release(random_.pick(known));
    } else if (kind < 36) {
      const Index id = random_.pick(known);
      model_.truncate(id, drawn_length(id));
    } else if (kind < 80) {
      append(some_of(known, kind < 58 ? 1 : 4), kind % 2 == 0);
    } else {
      attend(some_of(known, kind < 90 ? 1 : 4));
    }
  }

  std::vector<Index> ids() const {
    std::vector<Index> all;
    for (const auto& [id, tokens] : model_.sequences) all.push_back(id);
    return all;
  }
  std::vector<Index> some_of(std::vector<Index> from, Index most) {
    for (std::size_t i = from.size(); i > 1; --i)
      std::swap(from[i - 1], from[static_cast<std::size_t>(random_.integer(0, static_cast<Index>(i) - 1))]);
    from.resize(std::min(from.size(), static_cast<std::size_t>(random_.integer(1, most))));
    return from;
  }
  void fork(Index from) {
    if (random_.chance(0.5))
      model_.fork(from);
    else
      model_.fork(from, drawn_length(from));
  }
  Index drawn_length(Index of) { return random_.integer(model_.least(of), model_.sequences.at(of).size()); }

  /// Appends mostly a few tokens, rarely several pages of them. Sometimes NaN tokens are appended and immediately
  /// truncated: the memory after the end of a sequence, and of freed pages, must not affect results.
  void append(const std::vector<Index>& to, bool ragged) {
    const Index size = model_.cache.config().page_size;
    const auto draw = [&] { return random_.chance(0.1) ? random_.integer(0, 3 * size) : random_.integer(0, 4); };
    const Index same = draw();
    const bool forgotten = random_.chance(0.2);
    std::vector<Tokens> more;
    std::vector<Index> before;
    for (Index id : to) {
      const Index count = ragged ? draw() : same;
      more.push_back(Tokens::exact(model_.sizes(), count, random_));
      before.push_back(model_.sequences.at(id).size());
    }
    const Layout layouts[] = {Layout::bhsd, Layout::bshd, Layout::dim_major, Layout::gaps, Layout::reversed};
    const Layout layout = random_.pick(layouts);
    if (!model_.append(to, more, ragged, layout)) ++refusals_;
    if (!forgotten || to.size() > 1) return;
    const Index length = model_.sequences.at(to[0]).size();
    const Index room = length % size == 0 ? 0 : size - length % size;  // fits the last page
    if (model_.cache.pages_needed(to[0], room) > 0) return;
    Appended<Given<T>> poison(Tokens::filled(model_.sizes(), room, std::numeric_limits<double>::quiet_NaN()));
    model_.cache.append(to[0], poison.k(), poison.v());
    model_.slide(to[0]);
    model_.cache.truncate(to[0], model_.sequences.at(to[0]).size());
  }

  void attend(const std::vector<Index>& to) {
    const Index heads = model_.sizes().kv_heads * random_.integer(1, 3);
    std::vector<Tokens> tokens;
    std::vector<Index> q_lens;
    for (Index id : to) {
      tokens.push_back(model_.sequences.at(id));
      q_lens.push_back(random_.chance(0.5) ? 1 : random_.integer(0, 6));
    }
    const RaggedCall call(heads, tokens, q_lens, random_);
    RaggedMemory<float> memory(call);
    const auto q = memory.q.cview();
    static const std::vector<Isa> sets = instruction_sets();
    const Options options{.executor = serial(), .isa = random_.pick(sets)};
    const bool is_causal = random_.chance(0.5);
    const auto batch = model_.cache.view(to);
    if (is_causal)
      attention_into(memory.out.view(), memory.lse3(), ragged(q, q_lens), batch, causal(), options);
    else
      attention_into(memory.out.view(), memory.lse3(), ragged(q, q_lens), batch, thirds(), options);
    Meaning meaning;
    if (is_causal)
      meaning.keep = [](const Pair& p) { return p.kv <= p.q; };
    else
      meaning.score = [&](Real x, const Pair& p) {
        return x + ((p.kv + model_.offset(to[static_cast<std::size_t>(p.batch)])) % 3 == 0);
      };
    Expected<float>(call, meaning).expect(memory);
    ++attended_;
  }

  Random random_;
  PagedModel<T> model_;
  Index refusals_ = 0, attended_ = 0;
};

template <class T>
void run_trials() {
  Sample sample;
  std::cout << "seeds 1 to " << kSeeds << ", " << kOperations << " operations each" << sample.text() << "\n";
  Index refusals = 0, attended = 0, operations = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds && !::testing::Test::HasFailure(); ++seed) {
    if (!sample.takes_next()) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trial<T> trial(seed);
    trial.run();
    refusals += trial.refusals();
    attended += trial.attended();
    operations += kOperations;
  }
  // Checks that trials call attention. Whether appends fail often, but not too often, can only be checked over many
  // trials.
  EXPECT_GE(attended, operations / 10);
  if (operations < kSeeds * kOperations) return;
  EXPECT_GT(refusals, operations / 50);
  EXPECT_LT(refusals, operations / 4);
}

TEST(PagedKvOperations, Float) { run_trials<float>(); }
TEST(PagedKvOperations, BFloat16) { run_trials<Eigen::bfloat16>(); }
TEST(PagedKvOperations, EightBits) { run_trials<std::int8_t>(); }

}  // namespace
}  // namespace attn::test
