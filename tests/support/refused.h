// Expects calls to be refused, with the offending numbers in the message.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.h"

namespace attn::test {

/// Required substrings of a message.
using Said = std::vector<std::string>;

constexpr float kUntouched = -77;

/// A shape as messages show it: (2, 3, 4).
template <std::size_t kRank>
std::string shown(const std::array<Index, kRank>& shape) {
  std::string text;
  for (const Index size : shape) text += (text.empty() ? "(" : ", ") + std::to_string(size);
  return text + ")";
}

/// Expects that `call` throws std::invalid_argument, with all of `said` in its message. Without exceptions, a refusal
/// would end the program, so the call is not made.
template <class Call>
void expect_refused([[maybe_unused]] const char* what, [[maybe_unused]] const Said& said,
                    [[maybe_unused]] const Call& call) {
#ifndef ATTN_NO_EXCEPTIONS
  try {
    call();
    ADD_FAILURE() << what << ": nothing was thrown";
  } catch (const std::invalid_argument& e) {
    const std::string message = e.what();
    EXPECT_EQ(message.substr(0, 6), "attn: ") << what;
    for (const std::string& number : said)
      EXPECT_NE(message.find(number), std::string::npos) << what << ": no " << number << " in: " << message;
  } catch (...) {
    ADD_FAILURE() << what << ": threw something else";
  }
#endif
}

inline Tensor<float, 4> tensor(const Shape<4>& shape) { return Tensor<float, 4>(shape); }

/// Expects that all entry points refuse the call, and leave the caller's `out` and `lse` unchanged.
template <class M = Mods<>>
void expect_all_refuse(const char* what, const Said& said, const Shape<4>& q_shape, const Shape<4>& k_shape,
                       const Shape<4>& v_shape, const M& mods = {}, const Options& options = {}) {
  const auto q = tensor(q_shape), k = tensor(k_shape), v = tensor(v_shape);
  auto out = tensor({q_shape[0], q_shape[1], q_shape[2], v_shape[3]});
  Tensor<float, 3> lse({q_shape[0], q_shape[1], q_shape[2]});
  std::fill_n(out.data(), out.size(), kUntouched);
  std::fill_n(lse.data(), lse.size(), kUntouched);
  expect_refused(what, said, [&] { attention(q, k, v, mods, options); });
  expect_refused(what, said, [&] { naive_attention(q, k, v, mods, options); });
  expect_refused(what, said, [&] { attention_into(out, q, k, v, mods, options); });
  expect_refused(what, said, [&] { attention_into(out, lse, q, k, v, mods, options); });
  expect_refused(what, said, [&] { naive_attention_into(out, q, k, v, mods, options); });
  for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched) << what;
  for (Index i = 0; i < lse.size(); ++i) ASSERT_EQ(lse.data()[i], kUntouched) << what;
}

// Sizes that all differ, so that a number in a message identifies its size.
constexpr Shape<4> kQ{2, 6, 11, 13}, kK{2, 3, 17, 13}, kV{2, 3, 17, 19};

}  // namespace attn::test
