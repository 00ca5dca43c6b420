// Accuracy of the kernels' exponential function, measured through whole calls: two keys with scores x and 0 have the
// weights e^x / (1 + e^x) and 1 / (1 + e^x). The sweeps' tolerance allows for the rounding of long dot products, which
// could hide a poor polynomial.
#include "support/paths.h"

namespace attn::test {
namespace {

/// The largest error over rows with the scores x and 0 and values 1 and 0, whose output is the weight of x.
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
    // In units of the error that rounding the score x causes in the result.
    const Real unit = kEps * (1 + std::abs(x));
    largest = std::max({largest, std::abs(r.out(i, 0) / weight - 1) / unit, std::abs(r.lse(i) - lse) / unit});
  }
  return largest;
}

template <class T>
void expect_accurate() {
  std::vector<T> scores;  // weights down to e^-80, a normal number in every scalar
  for (int i = -8000; i <= 8000; ++i) scores.push_back(static_cast<T>(i) / T(100) + T(i % 7) / T(1000));
  constexpr double kAllowed = 2.5;  // the largest measured error was 1.5, over all scalars and instruction sets
  for (Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    Options options;
    options.scale = 1;
    options.isa = isa;
    const auto same = [](Real x) { return x; };
    EXPECT_LE(largest_relative_error<T>(scores, full(), same, options), kAllowed);
    EXPECT_LE(largest_relative_error<T>(scores, score_mod([](auto x, const Position&) { return x; }), same, options),
              kAllowed);
    for (std::size_t i = 0; i < scores.size(); i += 97)  // single queries have separate kernels
      ASSERT_LE(largest_relative_error<T>({scores[i]}, full(), same, options), kAllowed) << scores[i];
  }
}

/// The key with score 0 is unaffected by softcap, so the other key's weight shows the capped x.
template <class T>
void expect_softcap_accurate() {
  std::vector<T> scores;
  for (int i = -4000; i <= 4000; ++i) scores.push_back(static_cast<T>(i) / T(200));
  constexpr double kAllowed = 4;  // the largest measured error was 2.3
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

/// All results that depend on the weights, for rows with the scores x + shift and shift; x + shift is rounded once.
/// Values are 1 and 0: out is the weight of x, and its derivative with respect to x is that weight times the other.
template <class T>
class ShiftedRows {
  using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

 public:
  ShiftedRows(const std::vector<T>& scores, T shift)
      : shift_(shift), q_(Eigen::Map<const Vector>(scores.data(), static_cast<Index>(scores.size()))), k_(2), v_(2) {
    k_ << 1, 0;
    v_ << 1, 0;
  }

  /// The largest error, in units of the error that rounding the difference of the two scores causes in a weight.
  Real largest_error(Options options) const {
    options.scale = 1;
    const auto mods = score_mod([shift = shift_](auto x, const Position&) { return x + shift; });
    const Vector ones = Vector::Ones(q_.size()), none = Vector::Zero(2);
    const auto r = attention(q_, k_, v_, mods, options);
    const auto gradients = attention_backward(ones, q_, k_, v_, r, mods, options);
    const auto moved = attention_jvp(q_, k_, v_, ones, none, none, mods, options);
    const auto part = [&](Index key) {
      return attention(q_, k_.segment(key, 1).eval(), v_.segment(key, 1).eval(), mods, options);
    };
    const auto merged = merge(part(0), part(1));
    auto added = part(0);
    Options own = options;
    own.accumulate = true;
    attention_into(added.out, added.lse, q_, k_.segment(1, 1).eval(), v_.segment(1, 1).eval(), mods, own);
    Vector weights = Vector::Zero(q_.size());
    for_each_weight_tile(
        q_, k_, r.lse, mods,
        [&](const auto& t) {
          for (Index i = t.rows.begin; i < t.rows.end; ++i) weights(i) = t.weights(i - t.rows.begin, 0);
        },
        options);

    constexpr Real kEps = std::numeric_limits<T>::epsilon();
    Real largest = 0, sum = 0, sum_unit = 0;
    for (Index i = 0; i < q_.size(); ++i) {
      const Real x = static_cast<Real>(q_(i) + shift_) - static_cast<Real>(shift_), weight = 1 / (1 + std::exp(-x)),
                 rest = 1 / (1 + std::exp(x)), unit = kEps * (1 + std::abs(x)) * weight;
      sum += weight, sum_unit += unit;
      for (const T is : {r.out(i, 0), merged.out(i, 0), added.out(i, 0), weights(i), moved.out(i, 0)})
        largest = std::max(largest, std::abs(is - weight) / unit);
      for (const T is : {gradients.query(i, 0), moved.tangent(i, 0)})
        largest = std::max(largest, std::abs(is - weight * rest) / unit);
    }
    return std::max(largest, std::abs(gradients.value(0, 0) - sum) / sum_unit);
  }

 private:
  T shift_;
  Vector q_, k_, v_;
};

template <class T>
void expect_shifts_change_nothing() {
  constexpr T kMost = std::numeric_limits<T>::max();
  std::vector<T> scores;
  for (int i = -8000; i <= 8000; i += 23) scores.push_back(static_cast<T>(i) / T(100));
  constexpr double kAllowed = 4;
  for (const Isa isa : sets_for<T>())
    for (const T shift : {T(0), T(1e2), T(-1e2), T(1e4), T(-1e4), T(1e6), T(-1e6), T(1e9), T(-1e9), kMost, -kMost}) {
      SCOPED_TRACE(::testing::Message() << to_string(isa) << ", shift " << shift);
      EXPECT_LE(ShiftedRows<T>(scores, shift).largest_error({.isa = isa}), kAllowed);
      for (std::size_t i = 0; i < scores.size(); i += 97)  // single queries have separate kernels
        EXPECT_LE(ShiftedRows<T>({scores[i]}, shift).largest_error({.isa = isa}), kAllowed) << scores[i];
    }
}

TEST(Accuracy, AddingAConstantToARowKeepsWeightsAccurateFloat) { expect_shifts_change_nothing<float>(); }
TEST(Accuracy, AddingAConstantToARowKeepsWeightsAccurateDouble) { expect_shifts_change_nothing<double>(); }
TEST(Accuracy, AddingAConstantToARowKeepsWeightsAccurateLongDouble) { expect_shifts_change_nothing<long double>(); }
TEST(Accuracy, WeightsFloat) { expect_accurate<float>(); }
TEST(Accuracy, WeightsDouble) { expect_accurate<double>(); }
TEST(Accuracy, WeightsLongDouble) { expect_accurate<long double>(); }
TEST(Accuracy, SoftcapFloat) { expect_softcap_accurate<float>(); }
TEST(Accuracy, SoftcapDouble) { expect_softcap_accurate<double>(); }
TEST(Accuracy, SoftcapLongDouble) { expect_softcap_accurate<long double>(); }

}  // namespace
}  // namespace attn::test
