// Text processing and heat maps of the transliteration example.
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "count.h"
#include "heat_map.h"
#include "utf8.h"
#include "vocabulary.h"

namespace {

using namespace transliterate;

TEST(Utf8, LettersOfEveryLength) {
  EXPECT_EQ(letters_of("a\u0622\u20AC\U0001F600"), (Word{"a", "\u0622", "\u20AC", "\U0001F600"}));
  EXPECT_TRUE(letters_of("").empty());
  EXPECT_EQ(code_point("a"), U'a');
  EXPECT_EQ(code_point("\u0622"), U'\u0622');
  EXPECT_EQ(code_point("\u20AC"), U'\u20AC');
  EXPECT_EQ(code_point("\U0010FFFF"), U'\U0010FFFF');
  EXPECT_EQ(code_point_name(U'\u0622'), "U+0622");
  EXPECT_EQ(code_point_name(U'\U0001F600'), "U+1F600");
}

TEST(Utf8, RefusesInvalidUtf8) {
  const char* const broken[] = {
      "\x80",              // continuation without a lead
      "\xC3",              // truncated
      "\xE2\x82",          // truncated
      "\xF0\x9F\x98",      // truncated
      "\xC3\x28",          // lead without a continuation
      "\xC0\xAF",          // two bytes for one
      "\xE0\x80\xAF",      // three bytes for one
      "\xF0\x80\x80\xAF",  // four bytes for one
      "\xED\xA0\x80",      // surrogate
      "\xF4\x90\x80\x80",  // above U+10FFFF
      "\xF8\x88\x80\x80\x80",
      "\xFF",
  };
  for (const char* text : broken) {
    EXPECT_THROW(letters_of(text), std::invalid_argument);
    try {
      letters_of(std::string("ab") + text);
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("byte 3"), std::string::npos) << error.what();
    }
  }
}

TEST(Words, MayBePlainOrSpelledOut) {
  const Word name{"آ", "ز", "ا"};
  EXPECT_EQ(words_of("آزا"), std::vector<Word>{name});
  EXPECT_EQ(words_of("آ ز ا"), std::vector<Word>{name});
  EXPECT_EQ(words_of("  آ\tز\u00A0ا \n"), std::vector<Word>{name});
  EXPECT_EQ(words_of("آزا آزا"), (std::vector<Word>{name, name}));
  EXPECT_EQ(words_of("آزا ا"), (std::vector<Word>{name, {"ا"}}));
}

TEST(Words, RefusesEmptyAndOverlongOnes) {
  EXPECT_THROW(words_of(""), std::invalid_argument);
  EXPECT_THROW(words_of(" \t\u2003\n"), std::invalid_argument);
  EXPECT_EQ(words_of(std::string(kMaxWordLength, 'a')).front().size(), kMaxWordLength);
  EXPECT_THROW(words_of(std::string(kMaxWordLength + 1, 'a')), std::invalid_argument);
}

Panel panel(Word source, Word target) {
  const auto rows = static_cast<attn::Index>(target.size()), columns = static_cast<attn::Index>(source.size());
  Panel p{"panel", std::move(source), std::move(target), attn::Tensor<float, 2>({rows, columns})};
  p.weights.matrix().setConstant(1 / static_cast<float>(columns));
  return p;
}

TEST(HeatMap, HasACellForEveryPairOfEveryPanel) {
  const std::string svg = heat_map_svg("title", "text", {panel({"آ", "ز", "ا"}, {"a", "</s>"}), panel({"ب"}, {"b"})});
  EXPECT_EQ(count(svg, "class=\"cell weight\""), 3u * 2 + 1);
  EXPECT_NE(svg.find("<title>آ : a = 0.33</title>"), std::string::npos);
  EXPECT_NE(svg.find("<title>ب : b = 1.00</title>"), std::string::npos);
  EXPECT_NE(svg.find(">end</text>"), std::string::npos);
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
}

TEST(HeatMap, EscapesCharactersThatXmlForbids) {
  const std::string svg =
      heat_map_svg("<&>\"\x01", "a < b", {panel({"<", "&", "\x02", "\u200C", "\u064E"}, {"\"", ">"})});
  EXPECT_NE(svg.find("<title>&lt;&amp;&gt;&quot;\uFFFD</title>"), std::string::npos);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find(">U+0002</text>"), std::string::npos);
  EXPECT_NE(svg.find(">U+200C</text>"), std::string::npos);
  EXPECT_NE(svg.find(">\u25CC\u064E</text>"), std::string::npos) << "a combining mark needs a dotted circle";
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_EQ(svg.find('\x02'), std::string::npos);
}

TEST(HeatMap, RefusesWeightsOfAnotherShape) {
  Panel p = panel({"آ", "ز"}, {"a"});
  p.target.push_back("b");
  EXPECT_THROW(heat_map_svg("title", "text", {p}), std::invalid_argument);
}

}  // namespace
