// Layer 0: the instruction sets that have kernels, and which one a call uses.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "attn/detail/check.h"

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define ATTN_X86 1
#else
#define ATTN_X86 0
#endif

namespace attn {

/// Instruction sets, each a superset of the one before. `generic` is what the compiler's flags allow: SSE2 on x86-64,
/// NEON on ARM.
enum class Isa { generic, avx2, avx512 };

constexpr std::string_view to_string(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "generic";
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
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
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
inline bool available(Isa isa) { return isa >= detail::kPromisedIsa && detail::cpu_has(isa); }

/// The best available one.
inline Isa best_isa() { return available(Isa::avx512) ? Isa::avx512 : available(Isa::avx2) ? Isa::avx2 : Isa::generic; }

}  // namespace ATTN_BUILT_FOR
}  // namespace attn

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

inline std::string available_isas() {
  std::string names;
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512})
    if (available(isa)) names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  return names;
}

inline Isa checked_isa(Isa isa) {
  if (!available(isa))
    refuse({"the instruction set ", to_string(isa), " is not available here; these are: ", available_isas()});
  return isa;
}

inline Isa isa_from_environment() {
  const char* name = std::getenv("ATTN_ISA");
  if (name == nullptr || *name == '\0') return std::max(best_isa(), kPromisedIsa);
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512})
    if (to_string(isa) == name) return checked_isa(isa);
  refuse({"ATTN_ISA=", name, " names no instruction set; available here are: ", available_isas()});
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// What calls use that do not choose: the best there is, or what the environment variable ATTN_ISA names (generic,
/// avx2, avx512), read once.
/// @throws std::invalid_argument if ATTN_ISA names one that is not available.
inline Isa default_isa() {
  static const Isa isa = detail::isa_from_environment();
  return isa;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
