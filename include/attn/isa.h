// Instruction sets that have kernels, and the choice of one for a call.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "attn/core/base/built_for.h"
#include "attn/core/base/check.h"
#include "attn/core/base/cpu.h"

namespace attn {

/// Instruction sets that have kernels. `generic` is what the compiler's flags allow: SSE2 on x86-64, NEON on ARM,
/// SIMD128 in WebAssembly. `avx2` includes FMA and F16C; `avx2_vnni` adds integer dot products (AVX-VNNI), for 8-bit
/// caches. `avx512` includes F, BW, DQ and VL; `avx512_vnni` adds integer dot products (AVX512-VNNI), `avx512_bf16`
/// adds bf16 dot products (AVX512-BF16), and `amx` adds the matrix unit for bf16 (AMX-BF16).
enum class Isa { generic, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx };

/// All instruction sets, in ascending order of preference.
constexpr Isa kIsas[] = {Isa::generic,     Isa::avx2,        Isa::avx2_vnni, Isa::avx512,
                         Isa::avx512_vnni, Isa::avx512_bf16, Isa::amx};

/// Returns the name of an instruction set, as used in ATTN_ISA.
constexpr std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return "generic";
    case Isa::avx2:
      return "avx2";
    case Isa::avx2_vnni:
      return "avx2_vnni";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_vnni:
      return "avx512_vnni";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx:
      return "amx";
  }
  return "unknown";
}

}  // namespace attn

namespace attn::detail {

/// The parts of an instruction set: vectors, dot products (vnni: of integers; vnni_bf16: also of bf16) and a matrix
/// unit. There are vector kernels for all scalar types (ATTN_FOR_EACH_VECTOR_SET in core/simd/vector_sets.h). Kernels
/// that use dot products or the matrix unit exist only for some types, for which they replace the vector kernels.
enum class VectorSet : unsigned char { generic, avx2, avx512 };
enum class DotProducts : unsigned char { none, vnni, vnni_bf16 };
enum class MatrixUnit : unsigned char { none, amx };
struct IsaParts {
  VectorSet vectors;
  DotProducts dots;
  MatrixUnit matrix;
  friend constexpr bool operator==(const IsaParts&, const IsaParts&) = default;
};

/// Returns the parts of an instruction set. Only this function maps instruction sets to parts; all other code depends
/// on the parts.
constexpr IsaParts parts_of(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return {VectorSet::generic, DotProducts::none, MatrixUnit::none};
    case Isa::avx2:
      return {VectorSet::avx2, DotProducts::none, MatrixUnit::none};
    case Isa::avx2_vnni:
      return {VectorSet::avx2, DotProducts::vnni, MatrixUnit::none};
    case Isa::avx512:
      return {VectorSet::avx512, DotProducts::none, MatrixUnit::none};
    case Isa::avx512_vnni:
      return {VectorSet::avx512, DotProducts::vnni, MatrixUnit::none};
    case Isa::avx512_bf16:
      return {VectorSet::avx512, DotProducts::vnni_bf16, MatrixUnit::none};
    case Isa::amx:
      return {VectorSet::avx512, DotProducts::vnni_bf16, MatrixUnit::amx};
  }
  return {VectorSet::generic, DotProducts::none, MatrixUnit::none};
}
constexpr VectorSet vectors_of(Isa isa) { return parts_of(isa).vectors; }

/// Returns the instruction set with these parts.
constexpr Isa isa_with(const IsaParts& parts) {
  for (const Isa isa : kIsas)
    if (parts_of(isa) == parts) return isa;
  return Isa::generic;
}
static_assert(std::all_of(std::begin(kIsas), std::end(kIsas), [](Isa isa) { return isa_with(parts_of(isa)) == isa; }));

inline namespace ATTN_BUILT_FOR {

constexpr VectorSet kPromisedVectors = VectorSet::ATTN_PROMISED_VECTORS;

/// Whether AVX-512 and all dot products are compiled for AVX2. Only tests do this: see tests/support/software_avx512.h.
#if defined(ATTN_SOFTWARE_AVX512)
constexpr bool kSoftwareAvx512 = true;
#else
constexpr bool kSoftwareAvx512 = false;
#endif

/// Whether there are kernels for these vectors. Sets below what the compiler's flags promise have none.
constexpr bool has_kernels(VectorSet vectors) {
  switch (kPromisedVectors) {
    case VectorSet::generic:
      return ATTN_X86 || vectors == VectorSet::generic;
    case VectorSet::avx2:
      return vectors != VectorSet::generic;
    case VectorSet::avx512:
      return vectors == VectorSet::avx512;
  }
  return false;
}

inline bool cpu_has(VectorSet vectors) {
  if (vectors == kPromisedVectors || vectors == VectorSet::generic) return true;
#if ATTN_X86
  // The builtins also check that the operating system saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  if (vectors == VectorSet::avx2 || kSoftwareAvx512) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}
inline bool cpu_has_vnni(VectorSet vectors) {
  return (vectors == VectorSet::avx2 && (kSoftwareAvx512 || cpu_has_avx_vnni())) ||
         (vectors == VectorSet::avx512 && (kSoftwareAvx512 || cpu_has_avx512_vnni()));
}
inline bool cpu_has_bf16_dots() { return ATTN_BF16 && (kSoftwareAvx512 || cpu_has_bf16()); }
inline bool cpu_has(VectorSet vectors, DotProducts dots) {
  if (dots == DotProducts::none) return cpu_has(vectors);
  const bool has_dots = cpu_has_vnni(vectors) && (dots == DotProducts::vnni || cpu_has_bf16_dots());
  // The software that replaces the matrix unit in tests only needs AVX-512.
  return cpu_has(vectors) && (has_dots || (vectors == VectorSet::avx512 && software_tiles()));
}
inline bool cpu_has(MatrixUnit matrix) { return matrix == MatrixUnit::none || cpu_has_amx(); }

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail

namespace attn::inline ATTN_BUILT_FOR {

/// Whether this program can use the instruction set on this machine. False if the processor lacks it, or if the program
/// was compiled for a higher one (e.g. -march=native) and so has no kernels for lower ones.
inline bool available(Isa isa) {
  const detail::IsaParts parts = detail::parts_of(isa);
  return isa == detail::isa_with(parts) && detail::has_kernels(parts.vectors) &&
         detail::cpu_has(parts.vectors, parts.dots) && detail::cpu_has(parts.matrix);
}

/// Returns the best available instruction set. The first call that needs the matrix unit of `amx` requests it from the
/// operating system; if the request is refused, calls that need it run as with avx512_bf16.
inline Isa best_isa() {
  Isa best = detail::isa_with({detail::kPromisedVectors, detail::DotProducts::none, detail::MatrixUnit::none});
  for (Isa isa : kIsas)
    if (available(isa)) best = isa;
  return best;
}

}  // namespace attn::inline ATTN_BUILT_FOR

namespace attn::detail::inline ATTN_BUILT_FOR {

inline std::string available_isas() {
  std::string names;
  for (Isa isa : kIsas)
    if (available(isa)) names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  return names;
}

inline Isa checked_isa(Isa isa) {
  if (!available(isa))
    refuse({"the instruction set ", to_string(isa), " (", static_cast<int>(isa),
            ") is not available here; available: ", available_isas()});
  return isa;
}

/// The instruction set of calls that do not choose one, and the value of ATTN_ISA if it names no available set.
struct IsaOfEnvironment {
  Isa isa;
  std::string ignored;
};

/// Reads the variable once. An unavailable name does not end the program, because the user who sets the variable may be
/// unable to change the program.
inline const IsaOfEnvironment& isa_of_environment() {
  static const IsaOfEnvironment chosen = [] {
    IsaOfEnvironment e{best_isa(), {}};
    const char* name = std::getenv("ATTN_ISA");
    if (name == nullptr || *name == '\0') return e;
    for (Isa isa : kIsas)
      if (available(isa) && to_string(isa) == name) return IsaOfEnvironment{isa, {}};
    e.ignored = name;
    const std::string names = available_isas();
    std::fprintf(stderr, "attn: ATTN_ISA=%s is not available here (available: %s); using %s\n", name, names.c_str(),
                 to_string(e.isa).data());
    return e;
  }();
  return chosen;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR

namespace attn::inline ATTN_BUILT_FOR {

/// Returns the instruction set of calls that do not choose one: the best available, or the one that the environment
/// variable ATTN_ISA names (generic, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx), which is read once. An
/// unavailable name is ignored and reported once on standard error, and by explain() in Explanation::ignored_isa.
inline Isa default_isa() { return detail::isa_of_environment().isa; }

}  // namespace attn::inline ATTN_BUILT_FOR
