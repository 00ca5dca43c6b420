// The numbers of the exponential function: polynomials and the bits that make a power of two.
#pragma once

namespace attn::detail {

/// kPolynomial: 2^f on [-1/2, 1/2], and kMinusOne: (2^f - 1) / f there; both minimax in relative error, found by the
/// Remez exchange. Errors of 1.9e-9 and 1.1e-8 (float), 3e-18 and 1.8e-17 (double) are well below the rounding of the
/// evaluation. One degree less in float, 7.5e-8, is not; the speed gained was within the noise.
///
/// kRound: adding 1.5 * 2^mantissa rounds a number to an integer, which then stands in the low bits; the exponent's
/// bias is added too, so that shifting those bits up by kMantissaBits gives 2^n. kSmallest: e^x is normal from there
/// on. kTanhIsOne: tanh rounds to 1 from there on.
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr int kMantissaBits = 23, kDegree = 6;
  static constexpr float kRound = 12582912.0f + 127.0f, kSmallest = -87.3365f, kTanhIsOne = 10.0f;
  static constexpr float kPolynomial[] = {1.0000000005541663f,    0.69314720573725267f,   0.24022646890639572f,
                                          0.055503287769976638f,  0.0096184889565227916f, 0.0013399931209474140f,
                                          0.00015345812158740182f};
  static constexpr float kMinusOne[] = {0.69314718792668567f,   0.24022649794964410f,   0.055503574336481868f,
                                        0.0096182374941833146f, 0.0013390735475399872f, 0.00015403512618661003f};
};

template <>
struct Exp2Constants<double> {
  static constexpr int kMantissaBits = 52, kDegree = 11;
  static constexpr double kRound = 6755399441055744.0 + 1023.0, kSmallest = -708.396, kTanhIsOne = 20.0;
  static constexpr double kPolynomial[] = {
      0.9999999999999999971,    0.69314718055994533046,   0.24022650695910156205,    0.055504108664819921483,
      0.0096181291075883350833, 0.0013333558146789950323, 0.00015403530462514613026, 1.52527334899608046e-5,
      1.3215433089594629037e-6, 1.0178198033328527662e-7, 7.0741056262456593708e-9,  4.4352809446103361611e-10};
  static constexpr double kMinusOne[] = {
      0.6931471805599453112,    0.24022650695910097889,    0.055504108664821236499,    0.0096181291076070652998,
      0.0013333558146531644707, 0.00015403530441481283746, 0.000015252733701200713074, 1.3215442723878388157e-6,
      1.0178121305806718011e-7, 7.0725617683983011661e-9,  4.4455361318481760235e-10};
};

}  // namespace attn::detail
