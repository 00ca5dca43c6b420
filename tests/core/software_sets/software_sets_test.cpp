// The instructions of AVX-512 and AVX-VNNI in software (support/software_avx512.h): by hand from Intel's manual, and
// bit for bit against the processor where it has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "support/random.h"
#include "units.h"

namespace attn::test {
namespace {

constexpr std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float number(std::uint32_t x) { return std::bit_cast<float>(x); }

const Instruction& named(const std::vector<Instruction>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Instruction& i) { return i.name == name; });
  if (found == all.end()) throw std::logic_error("no such instruction: " + name);
  return *found;
}

class Software : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!software_has(Isa::avx2)) GTEST_SKIP() << "[  SKIPPED ] this processor has no AVX2";
  }
  /// The first lane of an instruction's result.
  std::uint32_t first(const std::string& name, std::uint32_t a, std::uint32_t b = 0, std::uint32_t c = 0) const {
    return named(all_, name).run({{a}}, {{b}}, {{c}}).bits[0];
  }
  /// before + odd[0] * odd[1] + even[0] * even[1] by the instruction for pairs of bf16.
  float pairs(float before, std::pair<float, float> odd, std::pair<float, float> even) const {
    const auto pair = [](float high, float low) { return (bits(high) & 0xffff0000) | bits(low) >> 16; };
    return number(first("vdpbf16ps", pair(odd.first, even.first), pair(odd.second, even.second), bits(before)));
  }

  const std::vector<Instruction> all_ = software_instructions();
};

TEST_F(Software, OddElementsOfPairsAreAddedFirst) {
  EXPECT_EQ(pairs(0x1p24f + 2, {1, 1}, {-1, 1}), 0x1p24f + 4)
      << "2^24 + 3 is a tie, to 2^24 + 4, and so is the next sum";
  EXPECT_EQ(pairs(0x1p24f + 2, {-1, 1}, {1, 1}), 0x1p24f);
}

TEST_F(Software, ProductsOfPairsAreNotRounded) {
  EXPECT_EQ(pairs(-0x1p127f, {0x1p64f, 0x1p64f}, {0, 0}), 0x1p127f) << "2^128 alone would be infinite";
  EXPECT_EQ(pairs(1, {0x1p-12f, 0x1p-12f}, {0, 0}), 1) << "a tie";
  EXPECT_EQ(pairs(1, {0x1p-12f, 0x1.02p-12f}, {0, 0}), 1 + 0x1p-23f);
}

TEST_F(Software, DenormalsInPairsAreZero) {
  EXPECT_EQ(pairs(0, {0x1p-127f, 0x1p100f}, {0x1p100f, 0x1p-127f}), 0) << "operands";
  EXPECT_EQ(pairs(0x1p-127f, {0, 0}, {0, 0}), 0) << "the previous sum";
  EXPECT_EQ(pairs(0, {0x1p-63f, 0x1p-64f}, {0x1p-63f, 0x1p-64f}), 0) << "the first sum, although twice it is normal";
  EXPECT_EQ(pairs(0, {0x1p-63f, 0x1p-63f}, {0, 0}), 0x1p-126f);
  EXPECT_TRUE(std::signbit(pairs(-0x1p-126f, {0x1p-64f, 0x1p-63f}, {0, -1}))) << "0 has the sign of the denormal";
}

TEST_F(Software, ASumIsDenormalIfItIsBelowTheSmallestNumberOnceRoundedTo24Bits) {
  // 2^-126 - x. With the precision of denormals, all three would be rounded to 2^-126.
  EXPECT_EQ(pairs(0x1p-126f, {0x1p-75f, -0x1p-75f}, {0, 0}), 0) << "x = 2^-150";
  EXPECT_EQ(pairs(0x1p-126f, {0x1.8p-76f, -0x1p-75f}, {0, 0}), 0) << "x = 3/4 of 2^-150";
  EXPECT_EQ(pairs(0x1p-126f, {0x1p-76f, -0x1p-75f}, {0, 0}), 0x1p-126f) << "x = 1/2 of 2^-150, a tie";
}

TEST_F(Software, RoundingToBf16) {
  constexpr std::uint32_t kNumbers[][2] = {
      {bits(1), 0x3f80},    {bits(-1.5f), 0xbfc0}, {0x3f808000, 0x3f80},  // halfway, to even
      {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},  {0x3f807fff, 0x3f80},
      {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80},  {0x7f800001, 0x7fc0},  // NaNs become quiet and are truncated
      {0xffc12345, 0xffc1}, {0x007fffff, 0},       {0x807fffff, 0x8000},  // denormals become 0
      {0x00800000, 0x0080},
  };
  for (const auto& [from, to] : kNumbers) EXPECT_EQ(first("vcvtne2ps2bf16", from) & 0xffff, to) << std::hex << from;
}

TEST_F(Software, IntegersThatDoNotFitAndNaNBecomeTheSmallest) {
  for (const auto& [from, to] : std::initializer_list<std::pair<float, std::uint32_t>>{
           {2.5f, 2}, {3.5f, 4}, {-0.5f, 0}, {0x1p31f, 0x80000000}, {-0x1p31f, 0x80000000}, {NAN, 0x80000000}})
    EXPECT_EQ(first("vcvtps2dq", bits(from)), to) << from;
}

TEST_F(Software, DotProductsOfBytesAreSignedByUnsigned) {
  const int sum = 5 + 255 * -128 + 1 * -1 + 128 * 127 + 255 * -127;
  EXPECT_EQ(first("vpdpbusd", 0xff01'80ff, 0x80ff'7f81, 5), static_cast<std::uint32_t>(sum));
  EXPECT_EQ(first("vpdpbusd", 1, 1, 0x7fffffff), 0x80000000) << "not saturated";
}

/// Operands where instructions differ: numbers of any size, ties, integers, denormals, infinities and NaNs.
class Operands {
 public:
  explicit Operands(std::uint64_t seed) : random_(seed) {}

  Lanes draw() {
    Lanes x;
    const Index kind = random_.integer(0, 7);
    for (std::uint32_t& lane : x.bits) lane = draw_lane(kind);
    return x;
  }

 private:
  std::uint32_t draw_lane(Index kind) {
    constexpr std::uint32_t kSpecial[] = {
        0,          0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x00800001,
        0x3f800000, 0xbf800000, 0x3f000000, 0x40200000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
        0xffc00000, 0x7f800001, 0xffbfffff, 0x7fc12345, 0x4f000000, 0xcf000000, 0x4effffff, 0x477fe000, 0x477ff000,
        0x38800000, 0x387fe000, 0x33000000, 0x33000001, 0x007f007f, 0x7f807f80, 0x7f800000, 0xff807f80, 0x80008000};
    constexpr std::uint32_t kLower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0x1fff};
    const auto any = static_cast<std::uint32_t>(random_.bits());
    const auto with_exponent = [&](Index exponent) {
      return (any & 0x807fffff) | static_cast<std::uint32_t>(exponent) << 23;
    };
    switch (kind) {
      case 0:
        return any;
      case 1:
        return random_.pick(kSpecial);
      case 2:
        return (any & 0xffff0000) | random_.pick(kLower);
      case 3:
        return with_exponent(random_.integer(120, 134));
      case 4:
        return bits(static_cast<float>(random_.integer(-600, 600)) / 4);
      case 5:  // products near the smallest normal number, in both elements of a pair
        return (any & 0x807f807f) |
               static_cast<std::uint32_t>(random_.integer(62, 65) << 23 | random_.integer(62, 65) << 7);
      case 6:
        return with_exponent(random_.integer(0, 3));
      default:
        return random_.chance(0.2) ? random_.pick(kSpecial) : with_exponent(random_.integer(100, 150));
    }
  }

  Random random_;
};

template <class T>
bool same_floats(const Lanes& a, const Lanes& b) {
  T x[64 / sizeof(T)], y[64 / sizeof(T)];
  std::memcpy(x, &a, 64);
  std::memcpy(y, &b, 64);
  for (std::size_t i = 0; i < std::size(x); ++i) {
    const bool both_nan = std::isnan(x[i]) && std::isnan(y[i]);
    if (!both_nan && std::memcmp(&x[i], &y[i], sizeof(T)) != 0) return false;
  }
  return true;
}
bool same(const Lanes& a, const Lanes& b, int float_bytes) {
  if (float_bytes == 4) return same_floats<float>(a, b);
  if (float_bytes == 8) return same_floats<double>(a, b);
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}
std::string hex(const Lanes& x) {
  std::string text;
  char word[10];
  for (std::uint32_t lane : x.bits) {
    std::snprintf(word, sizeof(word), " %08x", lane);
    text += word;
  }
  return text;
}

// Few processors have AVX-VNNI, but those of AVX512-VNNI have the wide instructions.
TEST_F(Software, InstructionsFor32BytesMatchThoseFor64) {
  for (const char* name : {"vcvtps2dq", "vpbroadcastd", "vpdpbusd"}) {
    Operands operands(1);
    for (int trial = 0; trial < 40000; ++trial) {
      const Lanes a = operands.draw(), b = operands.draw(), c = operands.draw();
      Lanes want = named(all_, name).run(a, b, c);
      std::fill_n(want.bits + 8, 8, 0u);
      const Lanes got = named(all_, std::string(name) + ", 32 bytes").run(a, b, c);
      ASSERT_TRUE(same(got, want, 0)) << name << " of" << hex(a) << "\nand" << hex(b) << "\nand" << hex(c);
    }
  }
}

TEST_F(Software, InstructionsMatchTheProcessor) {
  const auto software = software_instructions(), hardware = hardware_instructions();
  ASSERT_EQ(software.size(), hardware.size());
  for (std::size_t i = 0; i < software.size(); ++i) {
    if (!hardware_has(software[i].set)) continue;
    Operands operands(i);
    int failures = 0;
    for (int trial = 0; trial < 40000 && failures < 3; ++trial) {
      const Lanes a = operands.draw(), b = operands.draw(), c = operands.draw();
      const Lanes got = software[i].run(a, b, c), want = hardware[i].run(a, b, c);
      if (same(got, want, software[i].result_bytes)) continue;
      ++failures;
      ADD_FAILURE() << software[i].name << " of" << hex(a) << "\nand" << hex(b) << "\nand" << hex(c) << "\nis"
                    << hex(want) << "\nnot" << hex(got);
    }
  }
}

TEST_F(Software, CallsMatchTheProcessor) {
  bool compared = false;
  for (Isa isa : {Isa::avx2_vnni, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16}) {
    if (!hardware_has(isa)) continue;
    compared = true;
    for (const char* kind : kCalls)
      for (int seed = 0; seed < 4; ++seed)
        EXPECT_EQ(software_results(kind, isa, seed), hardware_results(kind, isa, seed))
            << kind << ", " << to_string(isa) << ", seed " << seed;
  }
  if (!compared) GTEST_SKIP() << "[  SKIPPED ] this processor has no such set to compare with";
}

TEST_F(Software, DotProductsOf32BytesMatchFloats) {
  const auto numbers = [](Isa isa, int seed) {
    const std::vector<unsigned char> bytes = software_results("int8 cache", isa, seed);
    std::vector<float> all(bytes.size() / sizeof(float));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  };
  for (int seed = 0; seed < 4; ++seed) {
    const std::vector<float> integers = numbers(Isa::avx2_vnni, seed), floats = numbers(Isa::avx2, seed);
    EXPECT_NE(integers, floats) << "the kernels are the same";
    ASSERT_EQ(integers.size(), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_NEAR(integers[i], floats[i], 2e-6) << i << ", seed " << seed;
  }
}

TEST_F(Software, TheSetsAreAvailableWithAVX2) {
  for (Isa isa : {Isa::avx2_vnni, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16}) {
    EXPECT_TRUE(software_has(isa)) << to_string(isa);
  }
}

}  // namespace
}  // namespace attn::test
