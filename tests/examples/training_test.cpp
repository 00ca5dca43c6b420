// Common parts of the training programs: progress, Ctrl-C, the loss curve and the report page.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bar.h"
#include "count.h"
#include "interrupt.h"
#include "loss_curve.h"
#include "new_file.h"
#include "progress.h"
#include "report.h"
#include "training_page.h"

namespace {

namespace fs = std::filesystem;
using namespace training;

TEST(TrainingProgress, WritesALinePerTenthWithoutATerminal) {
  std::ostringstream out;
  Progress progress(200, 0, out, false);
  for (int step = 1; step <= 200; ++step) progress.update(step, 3.25, 64);
  progress.finish();
  EXPECT_EQ(count(out.str(), "\n"), 10u);
  EXPECT_EQ(count(out.str(), "\r"), 0u);
  EXPECT_TRUE(std::regex_search(out.str(), std::regex("^20/200  loss 3\\.250  [0-9]+ tokens/s  .* left\n")));
  EXPECT_NE(out.str().find("\n200/200  loss 3.250"), std::string::npos);
}

TEST(TrainingProgress, ResumedRunsCountTheirOwnTokens) {
  std::ostringstream out;
  Progress progress(100, 90, out, false);
  for (int step = 91; step <= 100; ++step) progress.update(step, 1, 1000);
  EXPECT_EQ(count(out.str(), "\n"), 1u) << out.str();
  EXPECT_GT(progress.seconds(), 0);
  EXPECT_GE(10'000 / progress.tokens_per_second(), 0);
}

TEST(TrainingProgress, RedrawsTheLineOnATerminal) {
  std::ostringstream out;
  {
    Progress progress(4, 0, out, true, 100);
    progress.update(1, 2.5, 8);
    progress.say("validation loss 2.000");
    progress.update(2, 2.25, 8);
    progress.update(4, 2.0, 8);
  }
  // The bar is drawn, erased for the line above it, redrawn and ended.
  EXPECT_TRUE(
      std::regex_match(out.str(), std::regex("[^\n\r]*1/4  loss 2\\.500[^\n\r]*\r\x1b\\[Kvalidation loss 2\\.000\n"
                                             "[^\n\r]*2/4[^\n\r]*\r\x1b\\[K[^\n\r]*4/4  loss 2\\.000[^\n\r]*\n")))
      << out.str();
  EXPECT_NE(out.str().find("\u2588"), std::string::npos);
}

TEST(TrainingProgress, NoLineIsLongerThanTheTerminal) {
  std::ostringstream out;
  Progress progress(1'000'000, 0, out, true, 60);
  progress.update(1, 2.5, 8);
  EXPECT_EQ(out.str().find("\u2591"), std::string::npos) << "no space for a bar";
  EXPECT_LE(out.str().size(), 60u);
}

TEST(Bar, AppearsOnATerminalAndIsErased) {
  for (const bool terminal : {false, true}) {
    std::ostringstream out;
    {
      display::Bar bar("counting", out, terminal, std::chrono::seconds(0));
      bar.update(0, 4);
      EXPECT_EQ(out.str(), "");
      bar.update(4, 4);
      bar.update(4, 4);  // too soon to draw again
      std::string full;
      for (int i = 0; i < 24; ++i) full += "\u2588";
      EXPECT_EQ(out.str(), terminal ? "counting " + full + " 0 s left" : "");
    }
    EXPECT_EQ(out.str().ends_with("\r\x1b[K"), terminal);
  }
}

TEST(Bar, StaysSilentDuringShortWork) {
  std::ostringstream out;
  display::Bar("counting", out, true, std::chrono::hours(1)).update(1, 2);
  EXPECT_EQ(out.str(), "");
}

TEST(TrainingProgress, Durations) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(58.2), "59 s");
  EXPECT_EQ(duration_text(187), "3:07");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(-1), "0 s");
}

TEST(TrainingInterrupt, FirstSignalIsRecordedAndSecondEndsTheProgram) {
  {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.requested());
    std::raise(SIGINT);
    EXPECT_TRUE(interrupt.requested());
    EXPECT_EQ(interrupt.exit_code(), 130);
  }
  {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.requested()) << "a signal of an earlier run";
    std::raise(SIGTERM);
    EXPECT_EQ(interrupt.exit_code(), 143);
  }
  const fs::path file = fs::path(testing::TempDir()) / "attn_training_unfinished", part = file.string() + ".part";
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        nn::NewFile unfinished(file);
        unfinished.write("half", 4);
        std::raise(SIGINT);
        if (!fs::exists(part)) std::exit(3);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
  EXPECT_FALSE(fs::exists(part)) << "no partial file remains";
}

TEST(TrainingInterrupt, SignalHandlersAreRestored) {
  static std::atomic<int> seen{0};
  const auto before = std::signal(SIGINT, [](int) { ++seen; });
  {
    const Interrupt interrupt;
    std::raise(SIGINT);
    EXPECT_EQ(seen, 0);
  }
  std::raise(SIGINT);
  EXPECT_EQ(seen, 1);
  std::signal(SIGINT, before);
}

/// The system may deliver the signal to a thread of a pool.
TEST(TrainingInterrupt, AnyThreadMayReceiveTheSignal) {
  const Interrupt interrupt;
  std::thread([] { std::raise(SIGTERM); }).join();
  EXPECT_TRUE(interrupt.requested());
  EXPECT_EQ(interrupt.exit_code(), 143);
}

TEST(TrainingLossCurve, SmoothedLossesAreCentredMeans) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double x : smoothed(std::vector<double>(50, 2.5), 10)) EXPECT_NEAR(x, 2.5, 1e-12);
  EXPECT_EQ(smoothed({9, 1, 5, 3}, 3), (std::vector<double>{9, 5, 3, 4}));
  EXPECT_EQ(smoothed({1, nan, 2}, 3)[1], 1.5);
  EXPECT_EQ(smoothed({}, 3).size(), 0u);
  // The mean of falling losses neither lags behind them nor leads them.
  std::vector<double> falling;
  for (int i = 0; i < 1000; ++i) falling.push_back(4 - 0.002 * i);
  const std::vector<double> mean = smoothed(falling, 51);
  for (std::size_t i = 0; i + 25 < falling.size(); ++i) EXPECT_NEAR(mean[i], falling[i], 1e-9) << i;
  EXPECT_EQ(mean_of_last({100, nan, 1, 3}, 2), 2);
  EXPECT_EQ(mean_of_last({1, nan, 3}, 50), 2);
}

TEST(TrainingLossCurve, LegendNamesTheCurves) {
  LossCurve curve{{3, 2, 1}, {{3, 1.5}}};
  curve.training_name = "each step, with <dropout>";
  curve.validation_name = "held back, without";
  const std::string svg = loss_curve_svg(curve, "");
  EXPECT_NE(svg.find(">each step, with &lt;dropout&gt;<"), std::string::npos);
  EXPECT_NE(svg.find(">held back, without<"), std::string::npos);
  EXPECT_NE(svg.find(">mean of 11<"), std::string::npos);
}

TEST(TrainingLossCurve, HasAxesAndCurves) {
  LossCurve curve;
  for (int i = 0; i < 5000; ++i) curve.training.push_back(4 * std::exp(-i / 1000.0) + (i == 4321 ? 3 : 0));
  curve.validation = {{1000, 2.0}, {5000, 0.5}};
  const std::string svg = loss_curve_svg(curve, "a <b> & \"c\"");
  EXPECT_EQ(count(svg, "<polyline"), 3u);
  EXPECT_EQ(count(svg, "<circle"), 2u);
  EXPECT_EQ(count(svg, "a &lt;b&gt; &amp; &quot;c&quot;"), 2u);
  for (const char* text : {">step<", ">loss<", ">4000<", ">4<", ">0<", "prefers-color-scheme:dark"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_LT(svg.size(), 60'000u) << "the size must not depend on the number of steps";

  // The outlier has the smallest y of its neighbourhood: it is not averaged away.
  const std::size_t begin = svg.find("loss-step s1\" points=\"") + 22;
  std::istringstream points(svg.substr(begin, svg.find('"', begin) - begin));
  double highest = 1e9;
  for (std::string point; points >> point;) {
    const double x = std::stod(point), y = std::stod(point.substr(point.find(',') + 1));
    if (x > 500) highest = std::min(highest, y);
  }
  EXPECT_LT(highest, 52 + 260 * (4 - 2.9) / 4);
}

TEST(TrainingLossCurve, EmptyAndNonFiniteLossesCanBeDrawn) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const LossCurve& curve :
       {LossCurve{}, LossCurve{{nan, infinity}, {{1, nan}}}, LossCurve{{2}, {}}, LossCurve{{1, nan, 1}, {{2, 1}}}}) {
    const std::string svg = loss_curve_svg(curve, "");
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
  }
}

/// The JSON data of a page.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(TrainingReport, TextIsAlwaysEscaped) {
  const std::string evil = "</script><script>alert(1)</script><!-- & \u2028 \" ' \\ \n好久不见";
  Report report = attn::test::small_report();
  report.title = report.introduction = evil;
  report.summary = {{evil, evil}};
  report.samples = {{7, evil}};
  report.maps[0].title = report.maps[0].rows[0] = evil;
  const std::string page = report_html(report);
  EXPECT_EQ(count(page, "<script"), 2u);
  EXPECT_EQ(count(page, "</script>"), 2u);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_EQ(count(page, "&lt;/script&gt;"), 2u * 5u);  // <title>, <h1>, introduction, summary: name and value
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data["samples"][0]["text"], evil);
  EXPECT_EQ(data["samples"][0]["step"], 7);
  EXPECT_EQ(data["maps"][0]["title"], evil);
  EXPECT_EQ(data["maps"][0]["rows"][0], evil);
}

TEST(TrainingReport, InvalidUtf8DoesNotBreakThePage) {
  Report report = attn::test::small_report();
  report.samples = {{1,
                     "a\xff"
                     "b\xe4\xbd"}};
  EXPECT_EQ(data_of(report_html(report))["samples"][0]["text"], "a\uFFFDb\uFFFD");
}

TEST(TrainingReport, WeightsAreThousandths) {
  const Report report = attn::test::small_report();
  const nlohmann::json layers = data_of(report_html(report))["maps"][0]["layers"];
  ASSERT_EQ(layers.size(), report.maps[0].layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto& weights = report.maps[0].layers[l];
    const std::size_t size = static_cast<std::size_t>(weights.dim(2) * weights.dim(3));
    ASSERT_EQ(static_cast<attn::Index>(layers[l].size()), weights.dim(1));
    for (std::size_t h = 0; h < layers[l].size(); ++h) {
      ASSERT_EQ(layers[l][h].size(), size);
      for (std::size_t i = 0; i < size; ++i)
        EXPECT_NEAR(layers[l][h][i].get<float>() / 1000, weights.data()[h * size + i], 0.0005001f);
    }
  }
}

TEST(TrainingReport, HasNoExternalReferences) {
  const std::string page = report_html(attn::test::small_report());
  for (const char* reference : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    const std::string without = std::regex_replace(page, std::regex("http://www\\.w3\\.org/2000/svg"), "");
    EXPECT_EQ(without.find(reference), std::string::npos) << reference;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

TEST(TrainingReport, RefusesWeightsThatDoNotMatchTheLabels) {
  const auto refused = [](const std::function<void(AttentionMaps&)>& change) {
    Report report = attn::test::small_report();
    change(report.maps[0]);
    EXPECT_THROW(report_html(report), std::invalid_argument);
  };
  refused([](AttentionMaps& maps) { maps.rows.pop_back(); });
  refused([](AttentionMaps& maps) { maps.columns.push_back("x"); });
  refused([](AttentionMaps& maps) { maps.layers.clear(); });
  refused([](AttentionMaps& maps) { maps.layers[0] = attn::Tensor<float, 4>({2, 3, 2, 3}); });
}

}  // namespace
