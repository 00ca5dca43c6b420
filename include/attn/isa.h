// The instruction sets that have kernels, and which one a call uses.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attn/detail/base/check.h"
#include "attn/detail/base/cpu.h"

namespace attn {

/// Instruction sets, each a superset of the one before. `generic` is what the compiler's flags allow: SSE2 on x86-64,
/// NEON on ARM. `avx2` has FMA and F16C, `avx512` F, BW, DQ and VL, `amx` the matrix unit for bf16 and AVX512-BF16 too.
enum class Isa { generic, avx2, avx512, amx };

constexpr Isa kIsas[] = {Isa::generic, Isa::avx2, Isa::avx512, Isa::amx};

constexpr std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return "generic";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::amx:
      return "amx";
  }
  return "unknown";
}

}  // namespace attn

// What the compiler's flags promise anyway. What depends on that lies in a namespace named for it, so that translation
// units with different flags keep their own of each: the linker would take any one of two functions of the same name, and
// with it its instructions and the way Eigen aligns memory there. Types that a program hands from unit to unit (Tensor,
// Options, Executor, …) lie outside.
#if ATTN_X86 && defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__FMA__)
#define ATTN_PROMISED_ISA avx512
#define ATTN_BUILT_FOR built_for_avx512
#elif ATTN_X86 && defined(__AVX2__) && defined(__FMA__)
#define ATTN_PROMISED_ISA avx2
#define ATTN_BUILT_FOR built_for_avx2
#else
#define ATTN_PROMISED_ISA generic
#define ATTN_BUILT_FOR built_for_generic
#endif

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Kernels for less are not compiled.
constexpr Isa kPromisedIsa = Isa::ATTN_PROMISED_ISA;

inline bool cpu_has(Isa isa) {
  if (isa <= kPromisedIsa) return true;
#if ATTN_X86
  // These ask the operating system too, whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  if (isa == Isa::avx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return isa == Isa::avx512 ? avx512 : avx512 && cpu_has_amx();
#else
  return false;
#endif
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// Can this program use the instruction set here? False if the CPU lacks it, and if the program was compiled for a higher
/// one (-march=native, say), because then there are no kernels for less.
inline bool available(Isa isa) { return isa >= detail::kPromisedIsa && isa <= Isa::amx && detail::cpu_has(isa); }

/// The best available one. Whether the operating system lets the process use the matrix unit of `amx` is asked when a call
/// first wants it; where it does not, such a call runs as with avx512.
inline Isa best_isa() {
  Isa best = kIsas[0];
  for (Isa isa : kIsas)
    if (available(isa)) best = isa;
  return best;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

inline std::string available_isas() {
  std::string names;
  for (Isa isa : kIsas)
    if (available(isa)) names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  return names;
}

inline Isa checked_isa(Isa isa) {
  if (!available(isa))
    refuse({"the instruction set ", to_string(isa), " (", static_cast<int>(isa),
            ") is not available here; these are: ", available_isas()});
  return isa;
}

/// What calls use that do not choose, and what ATTN_ISA names if that cannot be had.
struct IsaOfEnvironment {
  Isa isa;
  std::string ignored;
};

/// Reads the variable once. Who sets it may not be who wrote the program, which goes on with what there is.
inline const IsaOfEnvironment& isa_of_environment() {
  static const IsaOfEnvironment chosen = [] {
    IsaOfEnvironment e{std::max(best_isa(), kPromisedIsa), {}};
    const char* name = std::getenv("ATTN_ISA");
    if (name == nullptr || *name == '\0') return e;
    for (Isa isa : kIsas)
      if (available(isa) && to_string(isa) == name) return IsaOfEnvironment{isa, {}};
    e.ignored = name;
    const std::string names = available_isas();
    std::fprintf(stderr, "attn: ATTN_ISA=%s is none of the instruction sets that are available here (%s); using %s\n",
                 name, names.c_str(), to_string(e.isa).data());
    return e;
  }();
  return chosen;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// What calls use that do not choose: the best there is, or what the environment variable ATTN_ISA names (generic,
/// avx2, avx512, amx), read once. A name that is not available is passed over: standard error says so once, and explain() in
/// Explanation::ignored_isa.
inline Isa default_isa() { return detail::isa_of_environment().isa; }

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
