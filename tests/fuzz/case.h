// One case: its random numbers, description, and the memory it keeps alive.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <attn/isa.h>
#include <attn/options.h>
#include <attn/parallel.h>

#include "guarded.h"
#include "random.h"
#include "support/executors.h"

namespace fuzz {

/// An error found by a case.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... X>
[[noreturn]] void fail(const X&... pieces) {
  std::ostringstream text;
  text.precision(9);
  (text << ... << pieces);
  throw Failure(text.str());
}

/// The largest fraction of the allowed error, for each kind of result.
using Shares = std::map<std::string, double>;

/// Settings shared by all cases of a run.
struct Setup {
  std::uint64_t seed = 1;
  std::optional<attn::Isa> isa = std::nullopt;  ///< nullopt: each case draws one
  bool wrong_oracle = false;                    ///< the oracle's scale is 1 % larger, which must be detected
};

class Case {
 public:
  Case(const Setup& setup, std::uint64_t number) : random(setup.seed, number), setup_(setup) {}
  Case(const Case&) = delete;

  Random random;
  std::ostringstream text;
  Index calls = 0;  ///< to the library
  Shares shares;

  /// Keeps alive the memory that a mod reads.
  template <class X>
  X& keep(X x) {
    auto held = std::make_shared<X>(std::move(x));
    kept_.push_back(held);
    return *held;
  }

  /// Returns options with a random instruction set and executor; no workspace yet.
  attn::Options options() {
    attn::Options o;
    std::vector<attn::Isa> there;
    for (attn::Isa isa : attn::kIsas)
      if (attn::available(isa)) there.push_back(isa);
    const auto drawn = there[static_cast<std::size_t>(random.from(0, static_cast<Index>(there.size()) - 1))];
    o.isa = setup_.isa.value_or(drawn);
    const Index who = random.from(0, 9);
    if (who < 5) o.executor = attn::serial();
    if (who >= 5 && who < 7) o.executor = pool(2);
    if (who == 7) o.executor = pool(3);
    text << ' ' << attn::to_string(*o.isa)
         << (who < 5    ? " serial"
             : who < 7  ? " threads(2)"
             : who == 7 ? " all of threads(3)"
                        : "");
    return o;
  }
  static attn::Executor pool(int workers) {
    static const attn::Executor two = attn::threads(2), three = attn::test::eager_threads(3);
    return workers == 2 ? two : three;
  }

  /// Draws the scale. Returns the oracle's scale.
  long double draw_scale(attn::Options& o, Index head_dim) {
    const Index kind = random.from(0, 99);
    if (kind < 55) return oracle_scale(1 / std::sqrt(static_cast<long double>(head_dim)));
    double scale = random.uniform(0.01, 1.5);
    if (kind < 60) scale = 0;
    if (kind >= 60 && kind < 72) scale = -scale;
    if (kind >= 90) scale *= 60;
    o.scale = scale;
    text << " scale=" << scale;
    return oracle_scale(scale);
  }

  /// The oracle's scale, which is deliberately wrong on request.
  long double oracle_scale(long double scale) const { return setup_.wrong_oracle ? scale * 1.01L : scale; }

  void used(const std::string& what, double share) {
    double& most = shares[what];
    most = std::max(most, share);
  }

 private:
  const Setup& setup_;
  std::vector<std::shared_ptr<void>> kept_;
};

/// One family of cases: draws a call, makes it and judges its results.
struct Family {
  const char* name;
  Index share;  ///< of all cases, relative to the sum over families
  void (*run)(Case&);
};

}  // namespace fuzz
