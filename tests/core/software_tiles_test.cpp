// Software emulation of the matrix unit, against products and sums worked out by hand from Intel's Software Developer's
// Manual, volume 2, TDPBF16PS and VCVTNE2PS2BF16.
#include "support/software_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "support/random.h"

#if ATTN_AMX
namespace attn::test {
namespace {

using detail::tmm0, detail::tmm1, detail::tmm2;

constexpr std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
/// The bits of a value that bf16 represents exactly.
constexpr std::uint16_t bf16(float x) { return static_cast<std::uint16_t>(bits(x) >> 16); }

struct alignas(64) Tile {
  std::uint32_t rows[16][16] = {};

  std::uint16_t* numbers(int row) { return reinterpret_cast<std::uint16_t*>(rows[row]); }
  friend bool operator==(const Tile&, const Tile&) = default;
};

/// Operands of one element of a product: row 3 of a and column 5 of b, indexed by k, and the element's previous value.
struct Column {
  std::uint16_t a[32] = {}, b[32] = {};
  float before = 0;

  Column& product(int k, float x, float y) { return product_of_bits(k, bf16(x), bf16(y)); }
  Column& product_of_bits(int k, std::uint16_t x, std::uint16_t y) {
    a[k] = x;
    b[k] = y;
    return *this;
  }
};

class SoftwareTilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::cpu_has(detail::VectorSet::avx512)) GTEST_SKIP() << "this processor has no AVX-512";
    SoftwareTiles::begin();
  }
  void TearDown() override {
    if (detail::cpu_has(detail::VectorSet::avx512)) SoftwareTiles::end();
  }

  static Tile multiply(const Tile& sum, const Tile& a, const Tile& b) {
    SoftwareTiles::load(tmm0, sum.rows, 64);
    SoftwareTiles::load(tmm1, a.rows, 64);
    SoftwareTiles::load(tmm2, b.rows, 64);
    SoftwareTiles::multiply(tmm0, tmm1, tmm2);
    Tile result;
    SoftwareTiles::store(tmm0, result.rows, 64);
    return result;
  }
  static float sum_of(const Column& column) {
    Tile sum, a, b;
    for (int k = 0; k < 32; ++k) {
      a.numbers(3)[k] = column.a[k];
      b.numbers(k / 2)[2 * 5 + k % 2] = column.b[k];
    }
    sum.rows[3][5] = bits(column.before);
    return std::bit_cast<float>(multiply(sum, a, b).rows[3][5]);
  }
};

TEST_F(SoftwareTilesTest, RowsAreReadAndWrittenAStrideApart) {
  std::vector<std::uint32_t> memory(16 * 20), back(16 * 24, 7);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::uint32_t>(i);
  SoftwareTiles::load(tmm1, memory.data(), 4 * 20);
  SoftwareTiles::store(tmm1, back.data(), 4 * 24);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 24; ++j) ASSERT_EQ(back[i * 24 + j], j < 16 ? i * 20 + j : 7);
  SoftwareTiles::zero(tmm1);
  SoftwareTiles::store(tmm1, back.data(), 4 * 24);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 24; ++j) ASSERT_EQ(back[i * 24 + j], j < 16 ? 0u : 7u);
}

TEST_F(SoftwareTilesTest, PairsOfAAreMultipliedWithTheMatchingRowOfB) {
  for (int i : {0, 6, 15})
    for (int k : {0, 7, 30, 31})
      for (int j : {0, 9, 15}) {
        Tile sum, a, b;
        a.numbers(i)[k] = bf16(3);
        b.numbers(k / 2)[2 * j + k % 2] = bf16(-0.5f);
        sum.rows[i][j] = bits(10);
        sum.rows[(i + 1) % 16][j] = bits(4);
        Tile want = sum;
        want.rows[i][j] = bits(8.5f);
        ASSERT_EQ(multiply(sum, a, b), want) << i << " " << k << " " << j;
      }
}

TEST_F(SoftwareTilesTest, EvenAndOddElementsAreSummedSeparatelyAndAddedLast) {
  // 2^24 + 1 is halfway between floats: adding 1 to 2^24 twice has no effect, unless the two ones are added to each
  // other first.
  EXPECT_EQ(sum_of(Column().product(0, 4096, 4096).product(2, 1, 1).product(4, 1, 1)), 0x1p24f);
  EXPECT_EQ(sum_of(Column().product(0, 4096, 4096).product(1, 1, 1).product(3, 1, 1)), 0x1p24f + 2);
  EXPECT_EQ(sum_of(Column().product(0, 1, 1).product(2, 1, 1).product(4, 4096, 4096)), 0x1p24f + 2);
  Column ones;
  ones.before = 0x1p24f;
  EXPECT_EQ(sum_of(ones.product(0, 1, 1)), 0x1p24f);
  EXPECT_EQ(sum_of(ones.product(1, 1, 1)), 0x1p24f + 2);
}

TEST_F(SoftwareTilesTest, TiesAreRoundedToEven) {
  Column odd;
  odd.before = 0x1p24f + 2;
  EXPECT_EQ(sum_of(odd.product(0, 1, 1)), 0x1p24f + 4);
  EXPECT_EQ(sum_of(Column().product(0, 4096, 4096).product(2, 1.0078125f, 1)), 0x1p24f + 2) << "just above halfway";
}

TEST_F(SoftwareTilesTest, ProductsAreNotRoundedBeforeTheyAreAdded) {
  EXPECT_EQ(sum_of(Column().product(0, -0x1p64f, 0x1p63f).product(2, 0x1p64f, 0x1p64f)), 0x1p127f);
  EXPECT_EQ(sum_of(Column().product(1, 0x1p64f, 0x1p64f)), std::numeric_limits<float>::infinity());
  // The second product alone would round to 0.
  EXPECT_EQ(sum_of(Column().product(0, 0x1p-63f, 0x1p-62f).product(2, -0x1p-70f, 0x1p-70f)), 0x1p-125f - 0x1p-140f);
}

TEST_F(SoftwareTilesTest, DenormalsCountAsZero) {
  constexpr std::uint16_t kLargestDenormal = 0x007f, kSmallestNormal = 0x0080, kLarge = bf16(0x1p100f);
  EXPECT_EQ(sum_of(Column().product_of_bits(4, kLargestDenormal, kLarge)), 0) << "in a";
  EXPECT_EQ(sum_of(Column().product_of_bits(5, kLarge, kLargestDenormal)), 0) << "in b";
  EXPECT_EQ(sum_of(Column().product_of_bits(4, kSmallestNormal, kLarge)), 0x1p-26f);
  EXPECT_EQ(sum_of(Column().product(0, 0x1p-63f, 0x1p-64f)), 0) << "products";
  EXPECT_EQ(sum_of(Column().product(0, 0x1p-63f, 0x1p-63f)), 0x1p-126f);
  EXPECT_EQ(sum_of(Column().product(0, 0x1p-63f, 0x1p-63f).product(1, 0x1.8p-63f, -0x1p-63f)), 0) << "sums of both";
  Column before;
  before.before = 0x1p-127f;
  EXPECT_EQ(sum_of(before), 0) << "the previous sum";
  before.before = 0x1.8p-126f;
  EXPECT_EQ(sum_of(before.product(0, -0x1p-63f, 0x1p-63f)), 0) << "the new sum";
}

TEST_F(SoftwareTilesTest, InfinitiesAndNaNsSpread) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of(Column().product(3, -kInf, 2)), -kInf);
  EXPECT_TRUE(std::isnan(sum_of(Column().product(3, kInf, 0))));
  EXPECT_TRUE(std::isnan(sum_of(Column().product(0, kInf, 1).product(1, -kInf, 1))));
  EXPECT_TRUE(std::isnan(sum_of(Column().product_of_bits(9, 0x7fc0, 0))));
  EXPECT_TRUE(std::isnan(sum_of(Column().product_of_bits(9, bf16(kInf), 1)))) << "a denormal is 0";
}

TEST_F(SoftwareTilesTest, TheCallersControlWordHasNoEffectAndIsKept) {
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_DOWNWARD);
  Column odd;
  odd.before = 0x1p24f + 2;
  const float rounded = sum_of(odd.product(0, 1, 1));
  const int rounding = std::fegetround(), exceptions = std::fetestexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(rounded, 0x1p24f + 4);
  EXPECT_EQ(rounding, FE_DOWNWARD);
  EXPECT_EQ(exceptions, 0);
  volatile float tiny = 0x1p-126f;
  EXPECT_EQ(tiny / 2, 0x1p-127f) << "denormals are enabled again";
}

TEST_F(SoftwareTilesTest, RegistersStartAtZeroAndPersistUntilTheOuterEnd) {
  Tile some, got;
  some.rows[1][1] = 5;
  SoftwareTiles::load(tmm0, some.rows, 64);
  SoftwareTiles::begin();
  SoftwareTiles::end();
  SoftwareTiles::store(tmm0, got.rows, 64);
  EXPECT_EQ(got, some);
  std::thread([&] {
    SoftwareTiles::begin();
    SoftwareTiles::store(tmm0, got.rows, 64);
    SoftwareTiles::end();
  }).join();
  EXPECT_EQ(got, Tile()) << "another thread's registers";
  SoftwareTiles::end();
  SoftwareTiles::begin();
  SoftwareTiles::store(tmm0, got.rows, 64);
  EXPECT_EQ(got, Tile());
}

TEST_F(SoftwareTilesTest, MisuseEndsTheProgram) {
  const char* const kOutside = "a register is used on a thread that is not between begin\\(\\) and end\\(\\)";
  EXPECT_DEATH(std::thread([] { SoftwareTiles::zero(tmm0); }).join(), kOutside);
  EXPECT_DEATH(std::thread([] { SoftwareTiles::end(); }).join(), "end\\(\\) without begin\\(\\) on this thread");
  Tile tile;
  const auto after_end = [&](const auto& use) {
    SoftwareTiles::end();
    use();
  };
  EXPECT_DEATH(after_end([&] { SoftwareTiles::load(tmm0, tile.rows, 64); }), kOutside);
  EXPECT_DEATH(after_end([&] { SoftwareTiles::store(tmm0, tile.rows, 64); }), kOutside);
  EXPECT_DEATH(after_end([&] { SoftwareTiles::multiply(tmm0, tmm1, tmm2); }), kOutside);
}

struct alignas(64) Floats {
  std::uint32_t numbers[16] = {};
};

TEST(SoftwareRounding, MatchesTheManual) {
  constexpr std::uint32_t kNumbers[][2] = {
      {bits(1), 0x3f80},    {bits(-1.5f), 0xbfc0},
      {0x3f808000, 0x3f80},  // halfway, to even
      {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
      {0x3f807fff, 0x3f80}, {0x7f7fffff, 0x7f80},
      {0xff7f7fff, 0xff7f}, {0x7f800000, 0x7f80},
      {0xff800000, 0xff80}, {0x7f800001, 0x7fc0},  // NaNs become quiet and are truncated
      {0xffc12345, 0xffc1}, {0x007fffff, 0},
      {0x807fffff, 0x8000},  // denormals become 0
      {0x00800000, 0x0080}, {0, 0},
  };
  Floats low, high;
  for (std::size_t i = 0; i < 16; ++i) {
    low.numbers[i] = kNumbers[i][0];
    high.numbers[15 - i] = kNumbers[i][0];
  }
  SoftwareTiles::round_to_bf16(low, high);
  std::uint16_t got[32];
  std::memcpy(got, low.numbers, sizeof(got));
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(got[i], kNumbers[i][1]) << i;
    EXPECT_EQ(got[31 - i], kNumbers[i][1]) << i;
  }
}

ATTN_TARGET_AVX512 void round_with_the_processor(Floats& low, const Floats& high) {
  detail::Vec<float, 64> x, y;
  std::memcpy(&x, low.numbers, sizeof(x));
  std::memcpy(&y, high.numbers, sizeof(y));
  detail::AmxTiles::round_to_bf16(x, y);
  std::memcpy(low.numbers, &x, sizeof(x));
}

TEST(SoftwareRounding, MatchesTheProcessor) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "this processor has no AVX512-BF16";
  if (detail::kSoftwareAvx512) GTEST_SKIP() << "compiled without the processor's instruction";
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      Floats low, high;
      low.numbers[3] = upper << 16 | lower;
      high.numbers[7] = upper << 16 | lower;
      Floats want = low;
      round_with_the_processor(want, high);
      SoftwareTiles::round_to_bf16(low, high);
      ASSERT_EQ(std::memcmp(&low, &want, sizeof(low)), 0) << std::hex << upper << lower;
    }
}

ATTN_TARGET_AVX512 void add_products_with_the_processor(Floats& sum, const Floats& a, const Floats& b) {
  detail::Vec<float, 64> s, x, y;
  std::memcpy(&s, sum.numbers, sizeof(s));
  std::memcpy(&x, a.numbers, sizeof(x));
  std::memcpy(&y, b.numbers, sizeof(y));
  detail::AmxTiles::add_products(s, x, y);
  std::memcpy(sum.numbers, &s, sizeof(s));
}

TEST(SoftwareSumsOfPairs, MatchTheProcessor) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "this processor has no AVX512-BF16";
  if (detail::kSoftwareAvx512) GTEST_SKIP() << "compiled without the processor's instruction";
  Random random(2);
  for (int trial = 0; trial < 10000; ++trial) {
    const auto draw = [&] {
      const auto half = [&] {
        return static_cast<std::uint32_t>(random.integer(0, 0x7f00) | random.integer(0, 1) << 15);
      };
      return half() << 16 | half();
    };
    Floats sum, a, b;
    for (std::size_t i = 0; i < 16; ++i) sum.numbers[i] = draw(), a.numbers[i] = draw(), b.numbers[i] = draw();
    Floats want = sum;
    add_products_with_the_processor(want, a, b);
    SoftwareTiles::add_products(sum, a, b);
    for (std::size_t i = 0; i < 16; ++i)
      ASSERT_TRUE(sum.numbers[i] == want.numbers[i] || (std::isnan(std::bit_cast<float>(sum.numbers[i])) &&
                                                        std::isnan(std::bit_cast<float>(want.numbers[i]))));
  }
}

TEST_F(SoftwareTilesTest, ProductsMatchTheProcessor) {
  if (detail::software_tiles() || !detail::amx_permitted()) GTEST_SKIP() << "no matrix unit to compare with";
  using detail::AmxTiles;
  Random random(1);
  AmxTiles::begin();
  for (int trial = 0; trial < 1000; ++trial) {
    // Exponents from a narrow range, where sums are rounded, up to the full range, which includes denormals, infinities
    // and NaNs.
    const Index half = trial % 128;
    const auto draw = [&] {
      return static_cast<std::uint16_t>(random.integer(0, 1) << 15 | random.integer(127 - half, 128 + half) << 7 |
                                        random.integer(0, 127));
    };
    Tile sum, a, b, got;
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 32; ++j) {
        a.numbers(i)[j] = draw();
        b.numbers(i)[j] = draw();
        sum.numbers(i)[j] = draw();
      }
    AmxTiles::load(tmm0, sum.rows, 64);
    AmxTiles::load(tmm1, a.rows, 64);
    AmxTiles::load(tmm2, b.rows, 64);
    AmxTiles::multiply(tmm0, tmm1, tmm2);
    AmxTiles::store(tmm0, got.rows, 64);
    const Tile want = multiply(sum, a, b);
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 16; ++j)
        EXPECT_TRUE(got.rows[i][j] == want.rows[i][j] || (std::isnan(std::bit_cast<float>(got.rows[i][j])) &&
                                                          std::isnan(std::bit_cast<float>(want.rows[i][j]))));
    if (HasFailure()) break;
  }
  AmxTiles::end();
}

}  // namespace
}  // namespace attn::test
#endif
