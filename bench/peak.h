// Yardsticks of a run: the machine's peak flop/s and read bandwidth, and the speed of Eigen's large product.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <attn/core/kernels/bf16/amx_registers.h>
#include <attn/isa.h>
#include <attn/parallel.h>
#include <Eigen/Core>

#include "timing.h"

namespace bench {

namespace detail {

// One source for all instruction sets: `acc = acc * a + b` on independent vectors, which compilers turn into fused
// multiply-adds if the set has them. It is a macro because a target attribute cannot be a template parameter. The
// factor below 1 keeps values away from infinity and from denormals. Returns a value that depends on all of them.
#define ATTN_BENCH_FMA_LOOP(NAME, BYTES, ...)                                          \
  template <class T, std::size_t... I>                                                 \
  __VA_ARGS__ T NAME(attn::Index steps, std::index_sequence<I...>) {                   \
    using Vector [[gnu::vector_size(BYTES)]] = T;                                      \
    Vector acc[] = {(Vector{} + static_cast<T>(I))...};                                \
    Vector a = Vector{} + static_cast<T>(0.75), b = Vector{} + static_cast<T>(0.25);   \
    for (attn::Index step = 0; step < steps; ++step) ((acc[I] = acc[I] * a + b), ...); \
    Vector sum = (acc[I] + ...);                                                       \
    return sum[0];                                                                     \
  }

#if defined(__x86_64__)
#if defined(__clang__)
// When clang tunes for most AVX-512 processors (-march=native), it would split 512-bit vectors into halves, at half the
// speed.
ATTN_BENCH_FMA_LOOP(fma_avx512, 64, [[gnu::noinline, gnu::target("avx512f"), clang::min_vector_width(512)]])
#else
ATTN_BENCH_FMA_LOOP(fma_avx512, 64, [[gnu::noinline, gnu::target("avx512f")]])
#endif
ATTN_BENCH_FMA_LOOP(fma_avx2, 32, [[gnu::noinline, gnu::target("avx2,fma")]])
#endif
ATTN_BENCH_FMA_LOOP(fma_baseline, 16, [[gnu::noinline]])
#undef ATTN_BENCH_FMA_LOOP

enum class FmaSet { baseline, avx2, avx512 };

/// Returns the set that calls of this process use, so that a set forced by ATTN_ISA is compared with its own peak.
inline FmaSet fma_set() {
#if defined(__x86_64__)
  using attn::detail::VectorSet;
  const VectorSet vectors = attn::detail::vectors_of(attn::default_isa());
  if (vectors == VectorSet::avx512) return FmaSet::avx512;
  if (vectors == VectorSet::avx2) return FmaSet::avx2;
#endif
  return FmaSet::baseline;
}

// Latency 4 × 2 units = 8 vectors keep every known core busy. With 32 registers, 20 accumulators give more slack; of 16
// registers, two hold the operands, so that 12 accumulators fit.
constexpr std::size_t kWide = 20, kNarrow = 12;

/// Runs `steps` steps of the loop for fma_set().
template <class T>
void run_fma(attn::Index steps) {
  [[maybe_unused]] volatile T sink;  // keeps the compiler from dropping the loop
  switch (fma_set()) {
#if defined(__x86_64__)
    case FmaSet::avx512:
      sink = fma_avx512<T>(steps, std::make_index_sequence<kWide>{});
      return;
    case FmaSet::avx2:
      sink = fma_avx2<T>(steps, std::make_index_sequence<kNarrow>{});
      return;
#endif
    default:
      sink = fma_baseline<T>(steps, std::make_index_sequence<kNarrow>{});
  }
}

/// Returns the flops of run_fma(). A multiplication and an addition count as two.
template <class T>
double fma_flops(attn::Index steps) {
  const std::size_t vectors = fma_set() == FmaSet::avx512 ? kWide : kNarrow;
  const std::size_t bytes = fma_set() == FmaSet::avx512 ? 64 : fma_set() == FmaSet::avx2 ? 32 : 16;
  return 2.0 * static_cast<double>(steps) * static_cast<double>(vectors * (bytes / sizeof(T)));
}

}  // namespace detail

/// Returns the name of the instructions that the peak is measured with.
inline std::string_view fma_set_name() {
  switch (detail::fma_set()) {
    case detail::FmaSet::avx512:
      return "AVX-512";
    case detail::FmaSet::avx2:
      return "AVX2 + FMA";
    case detail::FmaSet::baseline:
      break;
  }
  return "128-bit vectors";
}

/// Returns the FMA peak in flop/s of all workers of `executor` together, from registers, without memory accesses. It is
/// the best of a few short spans, because other load only lowers it. Each span is split into tasks, so that a worker
/// that starts late costs little.
template <class T>
double measure_fma_peak(const attn::Executor& executor) {
  constexpr double kPiece = 5e-4;
  constexpr attn::Index kPieces = 4;
  constexpr int kSpans = 3;
  static const attn::Index steps = [] {
    constexpr attn::Index kProbe = 20000;
    detail::run_fma<T>(kProbe);  // wakes up the wide units
    const double once = seconds([] { detail::run_fma<T>(kProbe); });
    return static_cast<attn::Index>(static_cast<double>(kProbe) * std::max(kPiece / once, 1.0));
  }();
  const attn::Index tasks = kPieces * executor.concurrency();
  double best = 0;
  for (int span = 0; span < kSpans; ++span) {
    const double time = seconds([&] { executor.run(tasks, [](attn::Index, int) { detail::run_fma<T>(steps); }); });
    best = std::max(best, static_cast<double>(tasks) * detail::fma_flops<T>(steps) / time);
  }
  return best;
}

/// Returns the bf16 peak in flop/s of the matrix units of all workers of `executor` together, likewise from registers.
/// 0 without a matrix unit.
inline double measure_amx_peak([[maybe_unused]] const attn::Executor& executor) {
#if ATTN_AMX
  if (attn::default_isa() != attn::Isa::amx || !attn::detail::amx_permitted()) return 0;
  constexpr attn::Index kSteps = 8000;  // 0.15 ms
  constexpr double kFlops = 4.0 * 2 * 16 * 16 * 32;
  constexpr int kSpans = 5;
  const attn::Index tasks = 4 * executor.concurrency();
  double best = 0;
  for (int span = 0; span < kSpans; ++span) {
    const double time = seconds([&] {
      executor.run(tasks, [](attn::Index, int) {
        using namespace attn::detail;  // the names of the registers
        using Tiles = AmxTiles;
        Tiles::begin();
        for (attn::Index step = 0; step < kSteps; ++step) {
          Tiles::multiply(tmm0, tmm4, tmm6);
          Tiles::multiply(tmm1, tmm4, tmm7);
          Tiles::multiply(tmm2, tmm5, tmm6);
          Tiles::multiply(tmm3, tmm5, tmm7);
        }
        Tiles::end();
      });
    });
    best = std::max(best, static_cast<double>(tasks * kSteps) * kFlops / time);
  }
  return best;
#else
  return 0;
#endif
}

/// Returns the bytes per second at which one core reads `numbers` in order.
inline double measure_read_bandwidth(const std::vector<float>& numbers) {
  using Vector [[gnu::vector_size(64), gnu::aligned(4)]] = float;
  constexpr std::size_t kVectors = 8, kStep = kVectors * 16;
  Vector sum[kVectors] = {};
  const double time = seconds([&] {
    for (std::size_t i = 0; i + kStep <= numbers.size(); i += kStep)
      for (std::size_t v = 0; v < kVectors; ++v)
        sum[v] += *reinterpret_cast<const Vector*>(numbers.data() + i + v * 16);
  });
  Vector all = {};
  for (const Vector& s : sum) all += s;
  [[maybe_unused]] volatile float sink = all[0];  // keeps the compiler from dropping the loop
  return static_cast<double>(numbers.size() * sizeof(float)) / time;
}

/// Measures the flop/s of Eigen's product of two 1024 × 1024 matrices on one core, as compiled in this program.
template <class T>
class EigenProduct {
 public:
  double measure() {
    const double time = seconds([&] { c_.noalias() = a_ * b_; });
    return 2.0 * kSize * kSize * kSize / time;
  }

 private:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  static constexpr int kSize = 1024;
  Matrix a_ = Matrix::Random(kSize, kSize), b_ = Matrix::Random(kSize, kSize), c_ = Matrix::Zero(kSize, kSize);
};

}  // namespace bench
