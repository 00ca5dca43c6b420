// Who competes. A contestant is a name and a way to compute attention; everything else in this folder treats them
// alike.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "workload.h"

namespace bench {

/// The scalar type that results in T are judged with.
template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

template <class T>
struct Contestant {
  std::string name;

  /// Does what a user does once for a shape (packing weights or building a plan would belong here) and returns the call
  /// that is timed. The arguments outlive it.
  std::function<void()> (*prepare)(attn::Tensor<T, 4>& out, const Inputs<T>& in, const Workload& work,
                                   const attn::Options& options);

  /// Why it takes no part in the work, in a few words; empty if it does.
  std::string_view (*declines)(const Workload& work, const attn::Options& options);
};

/// All contestants; the first is the one that the others are compared with.
template <class T>
const std::vector<Contestant<T>>& contestants();

/// Adds one, before the first row is measured.
template <class T>
void enter(Contestant<T> contestant);

/// The work by its definition in the next wider scalar type.
template <class T>
attn::Tensor<Wider<T>, 4> oracle(const Inputs<T>& in, const Workload& work, const attn::Options& options);

extern template const std::vector<Contestant<float>>& contestants();
extern template const std::vector<Contestant<double>>& contestants();
extern template void enter(Contestant<float>);
extern template void enter(Contestant<double>);
extern template attn::Tensor<double, 4> oracle(const Inputs<float>&, const Workload&, const attn::Options&);
extern template attn::Tensor<long double, 4> oracle(const Inputs<double>&, const Workload&, const attn::Options&);

}  // namespace bench
