// Linear attention with each feature map.
#include "families.h"
#include "recurrence_call.h"

namespace fuzz {
namespace {

/// The form of a map that applies `define` to each element, with an error of a few roundings.
template <class Define>
RecurrentForm by_numbers(const char* text, Index features, const Define& define) {
  return {text, features,
          [define](const std::vector<Wide>& x, bool) {
            FeatureRow row;
            for (const Wide number : x) {
              row.is.push_back(define(number));
              row.error.push_back(4 * std::abs(row.is.back()));
            }
            return row;
          },
          true};
}

/// Random features by the formula, without factors common to all features of a query, and without 1 / sqrt(m).
RecurrentForm random_features(Index features, Index dim, std::uint64_t seed, Wide scale) {
  const auto w = std::make_shared<const Tensor<double, 2>>(attn::detail::favor_vectors(features, dim, seed));
  return {"favor(" + std::to_string(features) + ")", features,
          [w, scale](const std::vector<Wide>& x, bool is_query) {
            FeatureRow row;
            Wide half_square = 0;
            for (const Wide number : x) half_square += scale * number * number / 2;
            const Wide each = 4 + std::sqrt(static_cast<Wide>(x.size()));
            for (Index f = 0; f < w->dim(0); ++f) {
              Wide exponent = is_query ? 0 : -half_square, size = half_square;
              for (std::size_t d = 0; d < x.size(); ++d) {
                const Wide term = std::sqrt(scale) * (*w)(f, static_cast<Index>(d)) * x[d];
                exponent += term, size += std::abs(term);
              }
              row.is.push_back(std::exp(exponent));
              row.error.push_back((8 + each * size) * row.is.back());
            }
            return row;
          },
          true};
}

template <class X, class O, class Map>
void with_map(RecurrentCall<X, O>& call, const Map& map, const RecurrentForm& form, double size) {
  call.fill(size, size, true);
  const auto rows = [&](const auto& t, const Range& of) { return rows_of(t.input(), of.begin, of.end); };
  const auto library = [&](const TensorView<O, 4>& out, [[maybe_unused]] auto state, const Range& queries,
                           const Range& keys, const auto& mods, const attn::Options& options) {
    const auto q = rows(call.q, queries), k = rows(call.k, keys), v = rows(call.v, keys);
    if constexpr (!std::is_null_pointer_v<decltype(state)>)
      return attn::linear_attention_into(out, *state, q, k, v, map, mods, options);
    else
      attn::linear_attention_into(out, q, k, v, map, mods, options);
  };
  const auto bytes = [&](const Range& queries, const Range& keys, const auto& mods, const attn::Options& options) {
    return attn::linear_workspace_bytes(rows(call.q, queries), rows(call.k, keys), rows(call.v, keys), map, mods,
                                        options);
  };
  const auto step = [](StepwiseState& s, Index, Index, Index, const FeatureRow& key, const std::vector<Wide>& value) {
    s.add(key, value, nullptr);
  };
  call.run(form, library, bytes, step, 1);
}

enum class Maps { all, some };

template <class X, class O, Maps kMaps>
void linear_of(Case& c) {
  Random& r = c.random;
  RecurrentCall<X, O> call(c, false);
  const Index dim = call.plan.head_dim, kind = r.from(0, 99);
  const double size = r.of({1.0, 1.0, 0.1, 3.0});
  if constexpr (kMaps == Maps::all) {
    if (kind < 15)
      return with_map(call, attn::relu(), by_numbers("relu", dim, [](Wide x) { return x < 0 ? 0 : x; }), size);
    if (kind < 25) return with_map(call, attn::identity(), by_numbers("identity", dim, [](Wide x) { return x; }), size);
    if (kind < 40)
      return with_map(call, attn::feature_map([](auto x) { return x * x; }),
                      by_numbers("square", dim, [](Wide x) { return x * x; }), size);
  }
  if (kind < 65) {
    const Index features = r.from(1, 40);
    const std::uint64_t seed = r.bits();
    const double scale = r.uniform(0.05, 1) / std::sqrt(static_cast<double>(dim));
    if (call.options.scale = scale; r.percent(40)) call.options.scale = 1 / std::sqrt(static_cast<double>(dim));
    return with_map(call, attn::favor(features, seed),
                    random_features(features, dim, seed, static_cast<Wide>(*call.options.scale)), std::min(size, 1.0));
  }
  with_map(call, attn::elu1(), by_numbers("elu1", dim, [](Wide x) { return x > 0 ? x + 1 : std::exp(x); }), size);
}

}  // namespace

void linear_recurrence(Case& c) {
  const Index kind = c.random.from(0, 99);
  if (kind < 65) return linear_of<float, float, Maps::all>(c);
  if (kind < 80) return linear_of<double, double, Maps::some>(c);
  if (kind < 90) return linear_of<Eigen::half, Eigen::half, Maps::some>(c);
  linear_of<Eigen::bfloat16, float, Maps::some>(c);
}

}  // namespace fuzz
