// The pictures in include/attn/positions.md show the results of the functions.
#include <gtest/gtest.h>

#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "attn/attn.h"

namespace attn::test {
namespace {

std::string page() {
  std::ifstream file(ATTN_POSITIONS_PAGE);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_on_page(const std::string& picture) {
  EXPECT_NE(page().find("\n" + picture), std::string::npos) << "the page should have:\n" << picture;
}

TEST(PositionsPage, Sinusoids) {
  const auto table = sinusoidal_positions<double>(12, 16);
  std::string picture = "sinusoidal_positions(12, 16)\n";
  for (Index p = 0; p < 12; ++p)
    for (Index c = 0; c < 16; ++c)
      picture += std::string(table(p, c) > 0.5 ? "■" : table(p, c) < -0.5 ? "□" : "·") + (c < 15 ? " " : "\n");
  expect_on_page(picture);
}

/// The amount subtracted from a score of 0, in eighths.
TEST(PositionsPage, Alibi) {
  Problem problem;
  problem.heads = 2;
  problem.q_len = problem.kv_len = 8;
  const std::vector<double> slopes{0.5, 0.125};
  const auto mod = alibi(slopes);
  const auto biased = mod.make(problem);
  const auto mask = causal();
  std::ostringstream picture;
  picture << "alibi({0.5, 0.125}) | causal()\n";
  for (Index q = 0; q < 8; ++q)
    for (Index head = 0; head < 2; ++head) {
      if (head == 1) picture << "      ";
      for (Index kv = 0; kv < 8; ++kv) {
        const Position p{0, head, q, kv};
        picture << (kv == 0 ? "" : " ") << std::setw(2);
        if (mask.keep(p))
          picture << -8 * biased.score(0.0, p) + 0.0;
        else
          picture << '.';
      }
      if (head == 1) picture << '\n';
    }
  expect_on_page(picture.str());
}

TEST(PositionsPage, Buckets) {
  const T5Buckets buckets(16, 16);
  std::ostringstream distances, of_distances;
  for (Index d = -12; d <= 12; ++d) {
    distances << (d == -12 ? "" : " ") << std::setw(3) << d;
    of_distances << (d == -12 ? "" : " ") << std::setw(3) << buckets(d);
  }
  expect_on_page("T5Buckets(16, 16)\n" + distances.str() + "\n" + of_distances.str() + "\n");
}

TEST(PositionsPage, Axes) {
  const auto expect = [](const std::string& text, const RopeAxesConfig& config) {
    std::string line = text + std::string(46 - text.size(), ' ');
    const RopeAxes axes(config);
    for (const RopeAxes::Pair& pair : axes.pairs()) line += std::to_string(pair.axis) + " ";
    line.back() = '\n';
    expect_on_page(line);
  };
  expect("{.sections = {8, 8}}", {.head_dim = 32, .sections = {8, 8}});
  expect("{.sections = {4, 6, 6}}", {.head_dim = 32, .sections = {4, 6, 6}});
  expect("{.sections = {4, 6, 6}, .interleaved = true}", {.head_dim = 32, .sections = {4, 6, 6}, .interleaved = true});
}

}  // namespace
}  // namespace attn::test
