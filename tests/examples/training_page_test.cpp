// The report page in a browser: its contents after its script has run, and after clicks and keys.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "count.h"
#include "files.h"
#include "report.h"
#include "training_page.h"

namespace {

namespace fs = std::filesystem;

/// The first installed browser; empty if none.
std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0) return name;
  return "";
}

class TrainingPage : public testing::Test {
 protected:
  void SetUp() override {
    if (browser().empty()) GTEST_SKIP() << "needs Chromium to open the page (apt-get install chromium)";
    folder_ = fs::path(testing::TempDir()) /
              (std::string("attn_training_page_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  /// Returns the DOM after running a script that acts as the user. Nothing may be written to the console.
  std::string rendered(const training::Report& report, const std::string& user = "", int width = 1000) {
    const std::string dom = opened(report, user, width);
    EXPECT_EQ(log_.find("CONSOLE"), std::string::npos) << log_;
    return dom;
  }

  /// The same, but allows output to the console, which is in log_.
  std::string opened(const training::Report& report, const std::string& user, int width) {
    std::string page = training::report_html(report);
    const std::size_t end = page.rfind("</body>");
    page.insert(end, "<script>" + user + "</script>\n");
    training::write_file(folder_ / "page.html", page);
    const std::string command = browser() + " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage" +
                                " --enable-logging=stderr --user-data-dir='" + (folder_ / "profile").string() +
                                "' --window-size=" + std::to_string(width) + ",900 --dump-dom 'file://" +
                                (folder_ / "page.html").string() + "' 2>'" + (folder_ / "log").string() + "'";
    std::string dom;
    FILE* pipe = popen(command.c_str(), "r");
    if (!pipe) return "";
    for (char part[4096]; const std::size_t n = std::fread(part, 1, sizeof part, pipe);) dom.append(part, n);
    EXPECT_EQ(pclose(pipe), 0);
    log_ = training::read_file(folder_ / "log");
    return dom;
  }

  fs::path folder_;
  std::string log_;
};

/// The text of the element with this id.
std::string text_of(const std::string& dom, const std::string& id) {
  std::smatch match;
  return std::regex_search(dom, match, std::regex(" id=\"" + id + "\"[^>]*>([^<]*)<")) ? match[1].str() : "missing";
}

TEST_F(TrainingPage, ShowsSummaryCurveSampleAndMaps) {
  const std::string dom = rendered(attn::test::small_report());
  for (const char* text : {"<h1>A page</h1>", "About nothing.", "<dt>parameters</dt><dd>12,345</dd>",
                           "<dt>speed</dt><dd>1,000 tokens/s</dd>", "class=\"display loss-curve\"", "Loss over steps"})
    EXPECT_NE(dom.find(text), std::string::npos) << text;
  EXPECT_EQ(text_of(dom, "sample-step"), "40");
  EXPECT_EQ(text_of(dom, "sample-text"), "forty\nlines");
  EXPECT_EQ(count(dom, "<canvas"), 6u);
  EXPECT_EQ(count(dom, "aria-pressed=\"true\""), 1u);
  EXPECT_EQ(count(dom, "class=\"cell\""), 6u);
  for (const char* label : {">h</text>", ">\u2423</text>", ">好</text>", ">久</text>", ">\u21b5</text>"})
    EXPECT_NE(dom.find(label), std::string::npos) << label;
  // The last row of the first head has its largest weight in the second column.
  EXPECT_EQ(text_of(dom, "readout"), "Layer 1, head 1: “\u2423” (2) attends to “久” (2) with weight 0.500.");
}

TEST_F(TrainingPage, NavigatesByKeysAndClicks) {
  const std::string keys =
      "const key = (e, name) => e.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));\n";
  const std::string slide =
      "const s = document.getElementById('sample'); s.value = 0; s.dispatchEvent(new Event('input'));\n";
  const std::string dom = rendered(attn::test::small_report(),
                                   keys + slide +
                                       "document.querySelector('[aria-label=\"layer 1, head 2\"]').click();\n"
                                       "key(document.getElementById('heads'), 'ArrowDown');\n"
                                       "key(document.getElementById('heads'), 'ArrowRight');\n"
                                       "key(document.getElementById('heads'), 'ArrowRight');\n"  // no fourth head
                                       "key(document.getElementById('map'), 'ArrowUp');\n"
                                       "key(document.getElementById('map'), 'ArrowLeft');\n");
  EXPECT_EQ(text_of(dom, "sample-step"), "10");
  EXPECT_EQ(text_of(dom, "sample-text"), "ten");
  EXPECT_TRUE(std::regex_search(dom, std::regex("aria-label=\"layer 2, head 3\"[^>]* aria-pressed=\"true\"")));
  EXPECT_EQ(text_of(dom, "readout"), "Layer 2, head 3: “h” (1) attends to “好” (1) with weight 0.125.");
}

TEST_F(TrainingPage, ChoosesAmongTexts) {
  training::Report report = attn::test::small_report();
  report.maps.push_back({"another", {"x"}, {"long label", "y"}, {attn::Tensor<float, 4>({1, 1, 1, 2})}});
  report.maps[1].layers[0](0, 0, 0, 1) = 1;
  const std::string dom =
      rendered(report,
               "document.querySelector('[aria-label=\"layer 2, head 3\"]').click();\n"
               "const c = document.getElementById('map-choice'); c.value = 1; c.dispatchEvent(new Event('change'));\n");
  EXPECT_EQ(count(dom, "<canvas"), 1u);
  EXPECT_EQ(count(dom, "class=\"cell\""), 1u) << "weights of 0 are not drawn";
  EXPECT_EQ(text_of(dom, "readout"), "Layer 1, head 1: “x” (1) attends to “y” (2) with weight 1.000.");
}

TEST_F(TrainingPage, HostileTextIsShownAndNotRun) {
  training::Report report = attn::test::small_report();
  const std::string evil = "</script><img src=x onerror=\"document.title='hacked'\"><b>好</b>";
  report.title = evil;
  report.samples = {{1, evil}};
  report.maps[0].title = report.maps[0].rows[1] = evil;
  const std::string dom = rendered(report);
  EXPECT_EQ(dom.find("<img"), std::string::npos);
  EXPECT_EQ(dom.find("<title>hacked"), std::string::npos);
  EXPECT_NE(text_of(dom, "sample-text").find("&lt;b&gt;好"), std::string::npos);
  EXPECT_NE(text_of(dom, "readout").find("&lt;b&gt;好"), std::string::npos);
}

TEST_F(TrainingPage, FitsANarrowScreen) {
  training::Report report = attn::test::small_report();
  report.samples = {{1, std::string(500, 'w')}};
  const std::string dom = rendered(
      report,
      "document.title = 'wider by ' + (document.documentElement.scrollWidth - document.documentElement.clientWidth);\n",
      500);
  EXPECT_NE(dom.find("<title>wider by 0</title>"), std::string::npos);
}

/// Browsers draw the same box for every letter that no font has.
TEST_F(TrainingPage, ChineseIsDrawnAsItself) {
  if (std::system("fc-list :lang=zh 2>/dev/null | grep -q .") != 0)
    GTEST_SKIP() << "no installed font has Chinese: on Debian, apt-get install fonts-noto-cjk or fonts-wqy-zenhei";
  const std::string dom = rendered(attn::test::small_report(), R"(
    const pixels = (letter) => {
      const canvas = document.createElement('canvas');
      canvas.width = canvas.height = 32;
      const context = canvas.getContext('2d');
      context.font = '24px ' + getComputedStyle(document.querySelector('#map text')).fontFamily;
      context.fillText(letter, 4, 26);
      return [...context.getImageData(0, 0, 32, 32).data].join();
    };
    // Unicode guarantees that this code point stays unassigned, so no font has it.
    const box = pixels('\u{e0fff}'), drawn = ['好', '久'].map(pixels);
    document.title = drawn[0] === drawn[1] || drawn.includes(box) ? 'boxes' : 'letters';
  )");
  EXPECT_NE(dom.find("<title>letters</title>"), std::string::npos);
}

TEST_F(TrainingPage, ConsoleErrorsAreDetected) {
  opened(attn::test::small_report(), "noSuchFunction();", 1000);
  EXPECT_NE(log_.find("CONSOLE"), std::string::npos);
  opened(attn::test::small_report(), "fetch('https://example.org/');", 1000);
  EXPECT_NE(log_.find("Content Security Policy"), std::string::npos) << "the page must not load anything";
}

TEST_F(TrainingPage, EmptyReportsHaveNoErrors) {
  EXPECT_NE(rendered({.title = "Empty", .introduction = "", .summary = {}, .losses = {}, .samples = {}, .maps = {}})
                .find("<h1>Empty</h1>"),
            std::string::npos);
}

}  // namespace
