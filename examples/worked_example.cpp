// Self-attention small enough to follow by hand, and the reason for the factor 1/sqrt(head_dim).
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <random>
#include <string_view>

#include <attn/attn.h>

namespace {

using Matrix = Eigen::MatrixXd;

/// Prints five significant digits, so that small weights stay readable.
void print(std::string_view title, const Matrix& m) {
  std::cout << title << '\n' << std::defaultfloat << std::setprecision(5);
  for (const auto row : m.rowwise()) {
    for (const double x : row) std::cout << std::setw(13) << x;
    std::cout << '\n';
  }
  std::cout << '\n';
}

/// Whether matrices agree to five significant digits, to which the expected values are given.
bool same_to_five_digits(const Matrix& actual, const Matrix& expected) {
  if (actual.rows() != expected.rows() || actual.cols() != expected.cols()) return false;
  const double half_a_unit = 0.5001e-4;  // of the fifth digit, relative to a leading digit of at least 1
  return ((actual - expected).array().abs() <= half_a_unit * expected.array().abs()).all();
}

bool check(std::string_view what, const Matrix& actual, const Matrix& expected) {
  const bool same = same_to_five_digits(actual, expected);
  if (!same) std::cerr << "worked_example: the " << what << " are not the expected ones\n";
  return same;
}

/// Three tokens of four features, projected to queries, keys and values of three features. The scale is 1, so that all
/// scores are integers.
bool three_tokens() {
  const Matrix x{{1, 0, 1, 0}, {0, 2, 0, 2}, {1, 1, 1, 1}};
  const Matrix to_key{{0, 0, 1}, {1, 1, 0}, {0, 1, 0}, {1, 1, 0}};
  const Matrix to_query{{1, 0, 1}, {1, 0, 0}, {0, 0, 1}, {0, 1, 1}};
  const Matrix to_value{{0, 2, 0}, {0, 3, 0}, {1, 0, 3}, {1, 1, 0}};

  const Matrix q = x * to_query, k = x * to_key, v = x * to_value;
  const Matrix scores = q * k.transpose();
  const auto naive = attn::naive_attention(q, k, v, {}, {.scale = 1});
  const Matrix out = attn::attention(q, k, v, {}, {.scale = 1}).out;

  std::cout << "Self-attention of three tokens (one per row)\n\n";
  print("x, the tokens", x);
  print("q = x * Wq, what each token asks for", q);
  print("k = x * Wk, what each token offers", k);
  print("v = x * Wv, what each token says", v);
  print("scores = q * k^T, how well they match", scores);
  print("weights = softmax of each row", naive.weights);
  print("out = weights * v", out);

  const Matrix expected_scores{{2, 4, 4}, {4, 16, 12}, {4, 12, 10}};
  const Matrix expected_weights{
      {0.063379, 0.46831, 0.46831}, {6.0337e-06, 0.98201, 0.017986}, {2.9539e-04, 0.88054, 0.11917}};
  const bool scores_right = check("scores", scores, expected_scores);
  const bool weights_right = check("weights", naive.weights, expected_weights);
  const bool out_right = check("outputs", out, naive.weights * v);
  return scores_right && weights_right && out_right;
}

/// Returns the mean over rows of -sum w ln w: ln(kv_len) for equal weights, 0 if one key has all the weight.
double mean_entropy(const Matrix& weights) {
  const auto entropy = [](double w) { return w > 0 ? -w * std::log(w) : 0.0; };
  return weights.unaryExpr(entropy).sum() / static_cast<double>(weights.rows());
}

/// Prints how widely the weights spread over keys, and returns their mean entropy.
double print_spread(std::string_view label, const Matrix& q, const Matrix& k, double scale) {
  const Matrix scores = scale * q * k.transpose();
  const Matrix weights = attn::naive_attention(q, k, k, {}, {.scale = scale}).weights;
  const double entropy = mean_entropy(weights);
  std::cout << std::setw(14) << label << std::setprecision(2) << std::setw(10) << scores.minCoeff() << " .. "
            << std::setw(6) << scores.maxCoeff() << std::setprecision(3) << std::setw(14) << entropy << std::setw(18)
            << weights.rowwise().maxCoeff().mean() << '\n';
  return entropy;
}

/// Compares attention of random queries and keys with and without the scale.
bool why_the_scale() {
  constexpr attn::Index kTokens = 64, kHeadDim = 64;
  std::mt19937 generator(1);
  std::normal_distribution<double> normal;
  const auto random = [&] { return normal(generator); };
  const Matrix q = Matrix::NullaryExpr(kTokens, kHeadDim, random);
  const Matrix k = Matrix::NullaryExpr(kTokens, kHeadDim, random);

  std::cout << std::fixed << "Why 1/sqrt(head_dim): " << kTokens << " random queries and keys of " << kHeadDim
            << " features\n\n"
            << std::setw(14) << "scale" << std::setw(20) << "scores" << std::setw(14) << "mean entropy" << std::setw(18)
            << "mean top weight" << '\n';
  const double plain = print_spread("1", q, k, 1);
  const double scaled = print_spread("1/sqrt(64)", q, k, 1 / std::sqrt(static_cast<double>(kHeadDim)));
  std::cout << "\nA dot product of d independent features has a standard deviation of sqrt(d): unscaled, softmax picks "
               "almost one key "
               "(entropy near 0)\nand hardly any gradient is left; scaled, every key gets some weight (equal weights "
               "would have "
               "entropy ln "
            << kTokens << " = " << std::log(static_cast<double>(kTokens)) << ").\n";
  return plain < scaled;
}

}  // namespace

int main() {
  const bool numbers_right = three_tokens();
  const bool scale_spreads = why_the_scale();
  return numbers_right && scale_spreads ? EXIT_SUCCESS : EXIT_FAILURE;
}
