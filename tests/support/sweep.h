// Compares both paths with the oracle over sizes, layouts and mods. Each scalar has its own test binary, to keep
// compile times short.
#pragma once

#include "any_rows.h"
#include "paths.h"
#include "sample.h"
#include "support/executors.h"

namespace attn::test {

/// Lengths at which something changes: 0, 1, and just below and above the limit for single queries and the tile sizes
/// (multiples of 4 to 48 queries, of 32 to 64 keys, by instruction set).
constexpr Index kLengths[] = {0, 1, 2, 4, 5, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 97, 130};
constexpr Index kDims[] = {1, 3, 8, 16, 17, 64, 65};

/// One case: random sizes, inputs and layouts, the same for every mod.
template <class T>
struct Drawn {
  Sizes sizes;
  Numbers numbers;
  Inputs inputs;
  Arguments<T> arguments;
  Layout out_layout;

  static Drawn draw(Sizes s, Random& random) {
    Numbers n;
    if (random.chance(0.4)) n.q_offset = random.integer(-5, s.kv_len + 5);
    if (random.chance(0.4)) n.scale = random.pick(std::vector{1.0, 0.25, -0.5, 0.0});
    Inputs in(s, random);
    in.round_to<T>();
    const Layout q = random.pick(kInputLayouts), k = random.pick(kInputLayouts), v = random.pick(kInputLayouts);
    if (is_repeated(q)) repeat_first(in.q, s.batch * s.heads);
    if (is_repeated(k)) repeat_first(in.k, s.batch * s.kv_heads);
    if (is_repeated(v)) repeat_first(in.v, s.batch * s.kv_heads);
    Arguments<T> arguments(in, q, k, v);
    return {s, n, std::move(in), std::move(arguments), random.pick(kOutputLayouts)};
  }
};

/// Batch and heads for these lengths; more than one of them only where that is cheap.
inline Sizes draw_sizes(Index q_len, Index kv_len, Random& random) {
  Sizes s;
  s.q_len = q_len;
  s.kv_len = kv_len;
  const Index many = q_len * kv_len > 1500 ? 1 : 3;
  s.batch = random.integer(1, many);
  s.kv_heads = random.integer(1, std::min<Index>(many, 2));
  s.heads = s.kv_heads * random.integer(1, many);
  s.head_dim = random.pick(kDims);
  s.v_dim = random.pick(kDims);
  return s;
}

template <class T>
void expect_right(Drawn<T>& drawn, const std::type_identity_t<AnyRow<T>>& row) {
  if (::testing::Test::HasFailure()) return;  // one failed case is enough
  static Sample sample;
  if (!sample.takes_next()) return;
  std::ostringstream text;
  text << row.name << ", " << drawn.sizes;
  if (drawn.numbers.q_offset) text << ", q_offset " << *drawn.numbers.q_offset;
  if (drawn.numbers.scale) text << ", scale " << *drawn.numbers.scale;
  text << sample.text();
  SCOPED_TRACE(text.str());

  const Truth truth = oracle(drawn.inputs, row.meaning, drawn.numbers);
  const Options options = options_of(drawn.numbers);
  std::vector<T> weights;
  const Computed<T> by_definition = naive(drawn.arguments, row.mod, options, &weights);
  expect_naive_close(truth, by_definition, drawn.sizes);
  expect_weights_close(truth, weights, drawn.sizes);
  static const Executor executors[] = {serial(), eager_threads(2)};
  static int turn = 0;  // combines each instruction set with each executor over the cases
  ++turn;
  int isa_number = 0;
  for (Isa isa : sets_for<T>()) {
    SCOPED_TRACE(to_string(isa));
    Options with_isa = options;
    with_isa.isa = isa;
    with_isa.executor = executors[(turn + ++isa_number) % 2];
    expect_close(truth, by_definition, flash(drawn.arguments, row.mod, with_isa, drawn.out_layout), lse_error<T>(isa));
    if (std::is_same_v<T, long double>) break;  // has no vectors, so all sets share one kernel
  }
}

template <class T>
void sweep_every_row_at_tiny_sizes() {
  Random random(1);
  for (Index q_len = 0; q_len <= 3; ++q_len)
    for (Index kv_len = 0; kv_len <= 3; ++kv_len) {
      const Sizes s{2, 4, 2, q_len, kv_len, 2, 3};
      Drawn<T> drawn = Drawn<T>::draw(s, random);
      for (const AnyRow<T>& row : all_rows<T>({s, drawn.numbers, random})) expect_right(drawn, row);
    }
}

template <class T>
void sweep_every_mod_at_every_tile_edge() {
  Random random(2);
  for (Index q_len : kLengths)
    for (Index kv_len : kLengths) {
      const Sizes s = draw_sizes(q_len, kv_len, random);
      Drawn<T> drawn = Drawn<T>::draw(s, random);
      for (const AnyRow<T>& row : one_row_per_mod<T>({s, drawn.numbers, random})) expect_right(drawn, row);
    }
}

template <class T>
void sweep_every_dim() {
  Random random(3);
  for (Index head_dim : kDims)
    for (Index v_dim : kDims) {
      const Sizes s{1, 2, 1, random.integer(1, 70), random.integer(1, 70), head_dim, v_dim};
      Drawn<T> drawn = Drawn<T>::draw(s, random);
      for (const AnyRow<T>& row : one_row_per_mod<T>({s, drawn.numbers, random})) expect_right(drawn, row);
    }
}

/// Decoding: one or a few queries per head, and many query heads per key head, with rows that the matrix unit can read
/// in place and rows that it cannot.
template <class T>
void sweep_grouped_single_queries() {
  Random random(4);
  for (Index group : {2, 3, 4, 5, 16, 17})
    for (Index kv_len : {1, 63, 64, 65, 200, 4200})
      for (const bool in_place : {true, false}) {
        if (kv_len > 200 && group != 3) continue;  // this many keys are split; once is enough
        const Index kv_heads = random.integer(1, 2), dims[] = {32, 64, 96, 40};
        const auto dim = [&] { return dims[random.integer(0, in_place ? 2 : 3)]; };
        const Sizes s{random.integer(1, 2),
                      group * kv_heads,
                      kv_heads,
                      group == 4 ? random.integer(1, 4) : 1,
                      kv_len,
                      dim(),
                      dim()};
        Drawn<T> drawn = Drawn<T>::draw(s, random);
        if (in_place) drawn.arguments = Arguments<T>(drawn.inputs, Layout::bshd);
        for (const AnyRow<T>& row : one_row_per_mod<T>({s, drawn.numbers, random})) expect_right(drawn, row);
      }
}

}  // namespace attn::test
