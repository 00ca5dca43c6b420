// Interface of two units that are compiled from the same files, one with ATTN_SOFTWARE_AVX512 and one without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <attn/isa.h>

namespace attn::test {

/// A vector of 64 bytes in memory.
struct alignas(64) Lanes {
  std::uint32_t bits[16];
};

/// An instruction with up to three operands. Those that change an operand take it as c and return it.
struct Instruction {
  std::string name;
  Lanes (*run)(const Lanes& a, const Lanes& b, const Lanes& c);
  int result_bytes = 0;  ///< of the floats that it returns, where NaNs may have any payload; 0: all bits are defined
  Isa set = Isa::avx512_bf16;  ///< that has the instruction
};
std::vector<Instruction> software_instructions();
std::vector<Instruction> hardware_instructions();

/// The bits of all results of a call. `kind` is one of kCalls.
inline constexpr const char* kCalls[] = {"float", "double", "bfloat16", "half", "int8 cache", "bfloat16 cache"};
std::vector<unsigned char> software_results(const std::string& kind, Isa isa, int seed);
std::vector<unsigned char> hardware_results(const std::string& kind, Isa isa, int seed);

/// Whether calls of the unit may use a set.
bool software_has(Isa isa);
bool hardware_has(Isa isa);

}  // namespace attn::test
