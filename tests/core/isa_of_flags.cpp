// Which instruction set calls use, in a program whose flags promise more than ATTN_ISA names. Without kernels, so that
// it compiles at once.
#include <iostream>

#include "attn/isa.h"

int main() {
  for (int i = 0; i < 2; ++i) std::cout << attn::to_string(attn::default_isa()) << '\n';
}
