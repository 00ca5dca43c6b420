// Draws each mod as weights computed by attn: FOLDER/<expression>.svg, and a line in FOLDER/index.txt.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <attn/attention.h>

#include "support/mod_pictures.h"

namespace {

using attn::Index;

constexpr Index kTokens = 12;

/// Returns a file name, as page.lua does: runs of characters other than letters, digits and underscores become a
/// hyphen, except at the end.
std::string slug(const std::string& expression) {
  std::string name;
  for (const char c : expression) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (is_word) name += c;
    if (!is_word && (name.empty() || name.back() != '-')) name += '-';
  }
  if (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

/// Returns an SVG with a square per pair and a row per query: share(i, j) is the opacity of the colour over a common
/// background.
template <class Share>
std::string svg(Index rows, const Share& share) {
  constexpr Index kPitch = 10;
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kPitch * kTokens << ' ' << kPitch * rows
      << "\" width=\"" << 2 * kPitch * kTokens << "\" height=\"" << 2 * kPitch * rows << "\">\n"
      << "<style>.ground{fill:#dde2e7}.kept{fill:#1e6fb0}"
         "@media(prefers-color-scheme:dark){.ground{fill:#2a323a}.kept{fill:#6cb6f5}}</style>\n";
  const auto square = [&](Index i, Index j, const char* what) {
    out << "<rect class=\"" << what << "\" x=\"" << kPitch * j + 1 << "\" y=\"" << kPitch * i + 1 << "\" width=\""
        << kPitch - 2 << "\" height=\"" << kPitch - 2 << "\" rx=\"1.5\"";
  };
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < kTokens; ++j) {
      const double colour = share(i, j);
      if (colour < 1) square(i, j, "ground"), out << "/>\n";
      if (colour > 0) square(i, j, "kept"), out << " opacity=\"" << std::round(100 * colour) / 100 << "\"/>\n";
    }
  out << "</svg>\n";
  return out.str();
}

/// Returns numbers that look random, and are the same on every platform.
Eigen::MatrixXf tokens(double seed) {
  return Eigen::MatrixXf::NullaryExpr(kTokens, 8, [&](Index i, Index d) {
    return static_cast<float>(2 *
                              std::sin(seed + 12.9898 * static_cast<double>(i) + 78.233 * static_cast<double>(d * d)));
  });
}

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)), index_(path_ + "/index.txt") {}

  void add(const char* kind, const std::string& prefix, const std::string& expression, const std::string& picture) {
    const std::string name = prefix + slug(expression);
    if (!names_.insert(name).second)
      throw std::runtime_error(expression + " has the same file name as another expression: " + name);
    std::ofstream file(path_ + '/' + name + ".svg");
    file << picture;
    index_ << kind << '\t' << name << '\t' << expression << '\n';
    if (!file.flush() || !index_.flush()) throw std::runtime_error("cannot write to " + path_);
  }

 private:
  std::string path_;
  std::ofstream index_;
  std::set<std::string> names_;
};

void draw(Folder& folder) {
  const Eigen::MatrixXf k = tokens(1), v = Eigen::MatrixXf::Zero(kTokens, 1);
  attn::test::for_each_mask_picture([&](const char* expression, Index rows, const auto& mask) {
    // All scores are equal, so that a weight is 0 only if its pair is dropped.
    const Eigen::MatrixXf weights = attn::naive_attention(Eigen::MatrixXf::Zero(rows, 8), k, v, mask).weights;
    folder.add("mask", "", expression, svg(rows, [&](Index i, Index j) { return weights(i, j) > 0 ? 1.0 : 0.0; }));
  });
  attn::test::for_each_weight_picture([&](const char* expression, const auto& mods) {
    const Eigen::MatrixXf weights = attn::naive_attention(tokens(2), k, v, mods).weights;
    // Not proportional, so that small weights are visible next to large ones.
    folder.add("weights", "weights-", expression,
               svg(kTokens, [&](Index i, Index j) { return std::pow(std::min(double(weights(i, j)), 1.0), 0.7); }));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: pictures FOLDER\n");
    return 2;
  }
  try {
    Folder folder(argv[1]);
    draw(folder);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "pictures: %s\n", e.what());
    return 1;
  }
}
