// The numbers of the hyperbolic tangent of vectors.
#pragma once

namespace attn::detail {

/// tanh x = x P(x²) / Q(x²) up to kTanhIsOne, from where on tanh rounds to 1. P and Q are minimax in relative error,
/// found by the Remez exchange: 2.1e-8 in float, 6.9e-17 in double, below the rounding of the evaluation. All
/// coefficients are positive, so that nothing cancels, and Q stays below 500 (float) and 1e6 (double).
template <class T>
struct TanhConstants;

template <>
struct TanhConstants<float> {
  static constexpr int kDegree = 4;
  static constexpr float kIsOne = 9.02f;
  static constexpr float kP[] = {0.99999997901127378f, 0.13379717317152729f, 0.0034940338566375610f,
                                 2.0583471018330414e-5f, 1.3319059905559057e-8f};
  static constexpr float kQ[] = {1.0f, 0.46713032555574882f, 0.025871070430545015f, 3.2830917489197193e-4f,
                                 7.7620140766716226e-7f};
};

template <>
struct TanhConstants<double> {
  static constexpr int kDegree = 9;
  static constexpr double kIsOne = 19.07;
  static constexpr double kP[] = {0.999999999999999931249,    0.151806513969147160609,    0.00597488540717247595867,
                                  9.36094038335757986323e-5,  6.83131210732833712433e-7,  2.44093273289543935318e-9,
                                  4.17183612613016893120e-12, 3.06434480162555904854e-15, 7.41545911536824693693e-19,
                                  2.50207372706048702500e-23};
  static constexpr double kQ[] = {1.0,
                                  0.485139847302479621458,
                                  0.0343548345080008442649,
                                  8.28161901088893711835e-4,
                                  8.75445035949346614607e-6,
                                  4.46388939397507399770e-8,
                                  1.11136143129460505028e-10,
                                  1.27068351231374522113e-13,
                                  5.63289611135884844946e-17,
                                  6.22479237997771812696e-21};
};

}  // namespace attn::detail
