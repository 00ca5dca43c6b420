// A process whose request for the matrix unit is refused computes without it and reports that. A separate program,
// since a process makes the request once. Exits with 0 on success, 1 on failure, 77 if the refusal cannot be provoked
// here.
#include <cstddef>
#include <iostream>

#include "attn/attn.h"

#if ATTN_AMX
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

namespace {

/// Makes the operating system answer further requests with "not permitted".
bool refuse_requests() {
  constexpr unsigned kRequestPermission = 0x1023;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequestPermission, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(*filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace
#endif

int main() {
#if ATTN_AMX
  if (!attn::available(attn::Isa::amx)) {
    std::cout << "skipped: this processor has no matrix unit\n";
    return 77;
  }
  if (!refuse_requests()) {
    std::cout << "skipped: this system cannot be made to refuse the request\n";
    return 77;
  }
  using Matrix = Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic>;
  const Matrix x = Eigen::MatrixXf::Random(50, 32).cast<Eigen::bfloat16>();
  attn::Options amx, by_vectors;
  amx.isa = attn::Isa::amx;
  by_vectors.isa = attn::Isa::avx512_bf16;
  const auto refused = attn::attention(x, x, x, attn::causal(), amx),
             without = attn::attention(x, x, x, attn::causal(), by_vectors);
  const attn::Explanation e = attn::explain(x, x, x, attn::causal(), amx);
  std::cout << e;
  const bool same = (refused.out.array() == without.out.array()).all() && refused.lse == without.lse;
  return same && e.amx == attn::Amx::refused && e.isa == attn::Isa::avx512_bf16 ? 0 : 1;
#else
  std::cout << "skipped: this system does not provide the matrix unit\n";
  return 77;
#endif
}
