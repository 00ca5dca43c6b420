// Text processing and metrics of train_translation.
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "characters.h"
#include "chrf.h"
#include "pairs.h"
#include "pieces.h"
#include "safetensors.h"

namespace {

using namespace translation;
using Strings = std::vector<std::string>;

Strings english_phrases() {
  Strings english;
  for (const Pair& pair : phrase_book()) english.push_back(pair.english);
  return english;
}

std::string joined(const Strings& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

TEST(Pieces, RoundTripAnyText) {
  const Pieces learned = Pieces::learn(english_phrases(), 300), bytes = Pieces::learn({}, 300);
  EXPECT_EQ(bytes.size(), 258);
  Strings texts = english_phrases();
  for (const char* text : {"",
                           " ",
                           "  two  blanks ",
                           "\ttab\tand\nline\r\n",
                           "small at first",
                           "Tom's \"quoted\" don't!",
                           "'tis",
                           "' '",
                           "12,345.67 %",
                           "caf\u00E9 na\u00EFve",
                           "\u00E9t\u00E9",
                           "\U0001F600 smile \U0001F469\u200D\U0001F680",
                           "\u597D\u4E45\u4E0D\u89C1\u3002",
                           "A",
                           "a",
                           " A",
                           " a",
                           "aB",
                           "\xFF\xFE no UTF-8",
                           "ALL CAPITALS"})
    texts.push_back(text);
  texts.push_back(std::string("a zero \0 byte", 13));
  for (const std::string& text : texts) {
    EXPECT_EQ(learned.decode(learned.encode(text)), text);
    EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
  }
}

TEST(Pieces, FrequentWordsAreOnePieceAtAnyPosition) {
  const Pieces pieces =
      Pieces::learn({"The cat saw the dog.", "I saw the cat.", "The dog saw Tom.", "Is Tom the cat?"}, 300);
  const Ids the = pieces.encode("The");
  ASSERT_EQ(the.size(), 1u);
  EXPECT_EQ(pieces.bytes(the[0]), " the");
  EXPECT_EQ(pieces.encode("I saw the")[2], the[0]);
  const Ids tom = pieces.encode("Tom");
  ASSERT_EQ(tom.size(), 1u);
  EXPECT_EQ(pieces.bytes(tom[0]), " Tom") << "names keep their capital";
  EXPECT_EQ(pieces.encode("the").front(), Pieces::kSmallLetter);
}

TEST(Pieces, MergesByHand) {
  // " low" 3 times, " lot" twice: " l" 5, "lo" 5 (equal, the smaller bytes first), then " lo", then " low".
  const Pieces pieces = Pieces::learn({"x low low low lot lot"}, 4);
  ASSERT_EQ(pieces.size(), 258 + 4);
  EXPECT_EQ(pieces.bytes(258), " l");
  EXPECT_EQ(pieces.bytes(259), " lo");
  EXPECT_EQ(pieces.bytes(260), " low");
  EXPECT_EQ(pieces.bytes(261), " lot");
  EXPECT_EQ(pieces.merges(), "32 108 258 111 259 119 259 116");
  EXPECT_EQ(Pieces::learn({"x low low low lot lot"}, 100).size(), 258 + 4) << "pairs that occur once are not merged";
  EXPECT_EQ(Pieces::learn({"x aaaaa aaaaa"}, 1).encode("x aaaaa").size(), 3u + 4u)
      << "five letters have two pairs to merge";
}

TEST(Pieces, MergesOfAFile) {
  const Pieces pieces = Pieces::learn(english_phrases(), 300);
  const Pieces again = Pieces::from_merges(pieces.merges());
  EXPECT_EQ(again.size(), pieces.size());
  for (const std::string& text : english_phrases()) EXPECT_EQ(again.encode(text), pieces.encode(text));
  EXPECT_EQ(Pieces::from_merges("").size(), 258);
  for (const char* broken : {"1", "1 ", "1 x", "-1 2", "1 258", "1 256", "257 1", "1 2 1 2", "1 2 3", "1  2", "1 2 ",
                             "99999999999 1", "1,2"})
    EXPECT_THROW(Pieces::from_merges(broken), std::invalid_argument) << broken;
  // Each piece is twice as long as the previous one.
  std::string long_ones = "97 97";
  for (int i = 258; i < 278; ++i)
    for (int side = 0; side < 2; ++side) long_ones.append(" ").append(std::to_string(i));
  EXPECT_THROW(Pieces::from_merges(long_ones), std::invalid_argument);
}

TEST(Characters, AreNormalised) {
  const auto usual = [](const char* text) { return joined(characters_of(text)); };
  EXPECT_EQ(usual("好久不见。"), "好久不见");
  EXPECT_EQ(usual("好久不见"), "好久不见");
  EXPECT_EQ(usual("不要动."), "不要动");
  EXPECT_EQ(usual("你喜欢吗 ?"), "你喜欢吗？");
  EXPECT_EQ(usual("很大, 不是吗?"), "很大，不是吗？");
  EXPECT_EQ(usual("「看啊！」"), usual("“看啊!”"));
  EXPECT_EQ(usual("３.４％。"), "3.4%");
  EXPECT_EQ(usual("Tom 和 Mary  Jane"), "Tom和Mary Jane");
  EXPECT_EQ(usual("你\u200B好\uFEFF\t"), "你好");
  EXPECT_TRUE(characters_of(" 。 \u3000").empty());
  EXPECT_EQ(characters_of("你好"), (Strings{"你", "好"}));
  EXPECT_THROW(characters_of("你\xE5\xA5"), std::invalid_argument);
}

TEST(Characters, AreNumberedByFrequency) {
  const Characters characters(std::vector<Pair>{{"a", "你好。"}, {"b", "你们好"}, {"c", "你"}});
  EXPECT_EQ(characters.text(), "你好们");
  EXPECT_EQ(characters.size(), 5);
  std::set<std::string> unknown;
  EXPECT_EQ(characters.encode("你龘好，龘", &unknown), (Ids{2, 0, 3, 0, 0, 1}));
  EXPECT_EQ(unknown, (std::set<std::string>{"龘", "，"}));
  EXPECT_EQ(characters.encode(""), Ids{Characters::kEnd});
  EXPECT_EQ(Characters::from_text("你好们").encode("们"), characters.encode("们"));
  EXPECT_THROW(Characters::from_text("你好你"), std::invalid_argument);
  EXPECT_THROW(Characters::from_text("\xE4\xBD"), std::invalid_argument);
}

TEST(Chrf, ByHand) {
  // 1-grams 2/3, 2-grams 1/2, 3-grams 0: precision and recall are 7/18.
  EXPECT_NEAR(chrf(Strings{"abc"}, Strings{"abd"}), 100.0 * 7 / 18, 1e-9);
  // Precision 1 and 1, recall 2/4 and 1/3; the translation has no 3-grams: 5 * 5/12 / (4 + 5/12).
  EXPECT_NEAR(chrf(Strings{"ab"}, Strings{"abcd"}), 100.0 * 25 / 53, 1e-9);
  EXPECT_NEAR(chrf(Strings{"a b"}, Strings{"ab\tcd "}), 100.0 * 25 / 53, 1e-9) << "blanks are ignored";
  // Counts are summed over sentences first: 1-grams 2 of 3 and 2 of 5, 2-grams 1 of 1 and 1 of 3.
  EXPECT_NEAR(chrf(Strings{"ab", "x"}, Strings{"abcd", "y"}), 100.0 * 275 / 666, 1e-9);
  // The 2-grams of "abc" have no reference and are ignored: precision (3/5 + 1) / 2, recall 1.
  EXPECT_NEAR(chrf(Strings{"abc", "ab"}, Strings{"a", "ab"}), 100.0 * 4 / 4.2, 1e-9);
  // Matches are clipped to the smaller count: precision 2/3, recall 1; 2-grams 1/2 and 1.
  EXPECT_NEAR(chrf(Strings{"aaa"}, Strings{"aa"}), 100.0 * 5 * (7.0 / 12) / (4 * 7.0 / 12 + 1), 1e-9);
  EXPECT_NEAR(chrf(Strings{"Long time, no see."}, Strings{"Long time, no see."}), 100, 1e-9);
  EXPECT_EQ(chrf(Strings{"abc"}, Strings{"xyz"}), 0);
  EXPECT_EQ(chrf(Strings{""}, Strings{"xyz"}), 0);
  EXPECT_EQ(chrf(Strings{}, Strings{}), 0);
  EXPECT_NEAR(chrf(Strings{"\u00E9a"}, Strings{"\u00E9b"}), 25, 1e-9) << "characters, not bytes";
  EXPECT_THROW(chrf(Strings{"a"}, Strings{}), std::invalid_argument);
}

TEST(ExactShare, CountsWholeTranslations) {
  EXPECT_EQ(exact_share(Strings{"a", "b ", "c", "D"}, Strings{"a", "b", "c", "d"}), 0.5);
  EXPECT_EQ(exact_share(Strings{}, Strings{}), 0);
}

TEST(PhraseBook, HasEachSentenceOnce) {
  const std::vector<Pair> pairs = phrase_book();
  EXPECT_GE(pairs.size(), 80u);
  std::set<std::string> chinese, english;
  bool found = false;
  for (const Pair& pair : pairs) {
    EXPECT_TRUE(chinese.insert(joined(characters_of(pair.chinese))).second) << pair.chinese;
    EXPECT_TRUE(english.insert(pair.english).second) << pair.english;
    found = found || (pair.chinese == "好久不见。" && pair.english == "Long time, no see.");
  }
  EXPECT_TRUE(found);
}

TEST(Pairs, OfALine) {
  const auto pairs = pairs_of("\xEF\xBB\xBFHi.\t嗨。\r\n\n \t \nBye.\t再见。\tCC-BY\tmore", "x.tsv");
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[0].english, "Hi.");
  EXPECT_EQ(pairs[0].chinese, "嗨。");
  EXPECT_EQ(pairs[1].chinese, "再见。");
}

TEST(Pairs, BrokenLinesAreNamed) {
  const auto message = [](const std::string& text) {
    try {
      pairs_of("Hi.\t嗨。\n" + text, "x.tsv");
    } catch (const nn::FileError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message("Hello"), "x.tsv: line 2: has no tab between English and Chinese");
  EXPECT_EQ(message("\n\t嗨"), "x.tsv: line 3: has no English");
  EXPECT_EQ(message("Hello\t。\tCC"), "x.tsv: line 2: has no Chinese");
  EXPECT_EQ(message("Hello\t你\xE5\xA5"), "x.tsv: line 2: byte 4 is not valid UTF-8");
  EXPECT_EQ(message("Hell\xFF\t你"), "x.tsv: line 2: byte 5 is not valid UTF-8");
  EXPECT_EQ(message(std::string(100'000, 'x')), "x.tsv: line 2: is too long for a sentence");
  EXPECT_EQ(message(std::string(100'000, 'x') + "\t你"), "x.tsv: line 2: is too long for a sentence");
  EXPECT_EQ(message("x\t" + std::string(100'000, 'x')), "x.tsv: line 2: is too long for a sentence");
  EXPECT_THROW(pairs_of("", "x.tsv"), nn::FileError);
  EXPECT_THROW(pairs_of(std::string(1000, '\0'), "x.tsv"), nn::FileError);
}

TEST(HoldBack, HoldsBackOnlyUniqueSentences) {
  std::vector<Pair> pairs{{"A.", "同。"}, {"B.", "同"}};
  for (int i = 0; i < 50; ++i) pairs.push_back({"N.", "句" + std::to_string(i)});
  const Split split = hold_back(pairs, 20, 7);
  EXPECT_EQ(split.held_back.size(), 20u);
  EXPECT_EQ(split.training.size(), 32u);
  std::set<std::string> held;
  for (const Pair& pair : split.held_back) held.insert(pair.chinese);
  EXPECT_EQ(held.size(), 20u);
  EXPECT_FALSE(held.contains("同。") || held.contains("同"));
  for (const Pair& pair : split.training) EXPECT_FALSE(held.contains(pair.chinese));
  const auto first = [&](std::uint64_t seed) {
    std::string all;
    for (const Pair& pair : hold_back(pairs, 20, seed).held_back) all += pair.chinese;
    return all;
  };
  EXPECT_EQ(first(7), first(7));
  EXPECT_NE(first(7), first(8));
  EXPECT_EQ(hold_back(pairs, 50, 1).training.size(), 2u);
  EXPECT_THROW(hold_back(pairs, 51, 1), std::invalid_argument);
}

}  // namespace
