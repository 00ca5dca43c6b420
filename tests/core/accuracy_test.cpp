// The exponential function inside the kernels, seen from outside: two keys with scores x and 0 weigh e^x / (1 + e^x)
// and the rest. The sweep's rule allows for the rounding of long dot products, in which a poor polynomial could hide.
#include "support/paths.h"

namespace attn::test {
namespace {

/// Rows with the scores x and 0, values 1 and 0: out is the weight of x.
template <class T, class M>
Real largest_relative_error(const std::vector<T>& scores, const M& mods, const std::function<Real(Real)>& meaning,
                            const Options& options) {
  constexpr Real kEps = std::numeric_limits<T>::epsilon();
  using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  const Vector q = Eigen::Map<const Vector>(scores.data(), static_cast<Index>(scores.size()));
  Vector k(2), v(2);
  k << 1, 0;
  v << 1, 0;
  const auto r = attention(q, k, v, mods, options);
  Real largest = 0;
  for (Index i = 0; i < q.size(); ++i) {
    const Real x = meaning(q(i)), weight = 1 / (1 + std::exp(-x)),
               lse = std::max<Real>(x, 0) + std::log1p(std::exp(-std::abs(x)));
    // In units of what rounding the score x alone does to the result.
    const Real unit = kEps * (1 + std::abs(x));
    largest = std::max({largest, std::abs(r.out(i, 0) / weight - 1) / unit, std::abs(r.lse(i) - lse) / unit});
  }
  return largest;
}

template <class T>
void expect_accurate() {
  std::vector<T> scores;  // weights down to e^-80, which is a normal number in every scalar
  for (int i = -8000; i <= 8000; ++i) scores.push_back(static_cast<T>(i) / T(100) + T(i % 7) / T(1000));
  constexpr double kAllowed = 2.5;  // at most 1.5 was measured, in all scalars and instruction sets
  for (Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    Options options;
    options.scale = 1;
    options.isa = isa;
    const auto same = [](Real x) { return x; };
    EXPECT_LE(largest_relative_error<T>(scores, full(), same, options), kAllowed);
    EXPECT_LE(largest_relative_error<T>(scores, score_mod([](auto x, const Position&) { return x; }), same, options),
              kAllowed);
    for (std::size_t i = 0; i < scores.size(); i += 97)  // one query a call, which has kernels of its own
      ASSERT_LE(largest_relative_error<T>({scores[i]}, full(), same, options), kAllowed) << scores[i];
  }
}

/// The key of score 0 keeps it, so that the weight of the other shows what softcap made of x.
template <class T>
void expect_softcap_accurate() {
  std::vector<T> scores;
  for (int i = -4000; i <= 4000; ++i) scores.push_back(static_cast<T>(i) / T(200));
  constexpr double kAllowed = 4;  // at most 2.3 was measured
  for (Isa isa : instruction_sets())
    for (const double cap : {0.5, 3.0, 60.0}) {
      Options options;
      options.scale = 1;
      options.isa = isa;
      const auto meaning = [cap](Real x) { return cap * std::tanh(x / cap); };
      EXPECT_LE(largest_relative_error<T>(scores, softcap(cap), meaning, options), kAllowed)
          << to_string(isa) << " " << cap;
    }
}

TEST(Accuracy, WeightsFloat) { expect_accurate<float>(); }
TEST(Accuracy, WeightsDouble) { expect_accurate<double>(); }
TEST(Accuracy, WeightsLongDouble) { expect_accurate<long double>(); }
TEST(Accuracy, SoftcapFloat) { expect_softcap_accurate<float>(); }
TEST(Accuracy, SoftcapDouble) { expect_softcap_accurate<double>(); }
TEST(Accuracy, SoftcapLongDouble) { expect_softcap_accurate<long double>(); }

}  // namespace
}  // namespace attn::test
