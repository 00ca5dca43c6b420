// Prints the instruction set that calls use in a program whose compiler flags enable more than ATTN_ISA names. No
// kernels are instantiated, so that it compiles quickly.
#include <iostream>

#include "attn/isa.h"

int main() {
  for (int i = 0; i < 2; ++i) std::cout << attn::to_string(attn::default_isa()) << '\n';
}
