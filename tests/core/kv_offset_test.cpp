// Keys that begin anywhere (Options::kv_offset): a part of the keys gives what all of them give where a mask drops the
// others.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/any_rows.h"
#include "support/key_parts.h"

namespace attn::test {
namespace {

/// A call, and calls over parts of its keys.
class Parts {
 public:
  Parts(const Sizes& s, std::optional<Index> q_offset, Random& random)
      : sizes(s), numbers{.scale = std::nullopt, .q_offset = q_offset}, inputs_(s, random), arguments_(inputs_) {}

  const Sizes sizes;
  const Numbers numbers;

  void check(const AnyRow<float>& row, Range part) {
    if (::testing::Test::HasFailure() || needs_all_keys(row.name, numbers)) return;
    SCOPED_TRACE(text_of_part(row.name, sizes, part, numbers));
    const Truth truth = oracle(inputs_, of_part(row.meaning, part), numbers);
    const auto k = rows_of(arguments_.k.cview(), part), v = rows_of(arguments_.v.cview(), part);
    Options options{.q_offset = numbers.first_position(sizes), .kv_offset = part.begin, .executor = serial()};
    const auto plain = [](const auto& t) { return std::vector<float>(t.data(), t.data() + t.size()); };
    const auto naive = row.mod.naive(arguments_.q.cview(), k, v, options);
    const Computed<float> by_definition{plain(naive.out), plain(naive.lse)};
    expect_naive_close(truth, by_definition, sizes);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      Tensor<float, 4> out({sizes.batch, sizes.heads, sizes.q_len, sizes.v_dim});
      Tensor<float, 3> lse({sizes.batch, sizes.heads, sizes.q_len});
      options.isa = isa;
      row.mod.flash(out, lse, arguments_.q.cview(), k, v, options);
      expect_close(truth, by_definition, {plain(out), plain(lse)});
    }
  }

 private:
  const Inputs inputs_;
  Arguments<float> arguments_;
};

TEST(KvOffset, EveryModSeesAPartAsAMaskOfIt) {
  Random random(1);
  for (const Index q_len : {1, 20, 70}) {
    for (const auto& q_offset : {std::optional<Index>(), std::optional<Index>(random.integer(-30, 200))}) {
      Parts c({2, 4, 2, q_len, 200, 8, 5}, q_offset, random);
      const Index cut = random.integer(1, 199);
      for (const AnyRow<float>& row : all_rows<float>({c.sizes, c.numbers, random}))
        for (const Range part : {Range{0, cut}, Range{cut, 200}}) c.check(row, part);
    }
  }
}

}  // namespace
}  // namespace attn::test
