// Contestants: named implementations of attention with a common interface.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "workload.h"

namespace bench {

/// The scalar type of the reference for results in T.
template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

template <class T>
struct Contestant {
  std::string name;

  /// Does the one-time work for a shape, such as packing weights or building a plan, and returns the call to time. The
  /// arguments outlive that call.
  std::function<void()> (*prepare)(attn::Tensor<T, 4>& out, const Inputs<T>& in, const Workload& work,
                                   const attn::Options& options);

  /// Returns in a few words why it cannot run the workload; empty if it can.
  std::string_view (*declines)(const Workload& work, const attn::Options& options);
};

/// All contestants. The first is the baseline of comparisons.
template <class T>
const std::vector<Contestant<T>>& contestants();

/// Adds a contestant. Must be called before the first row is measured.
template <class T>
void enter(Contestant<T> contestant);

/// Computes the workload by the definition, in the next wider scalar type.
template <class T>
attn::Tensor<Wider<T>, 4> oracle(const Inputs<T>& in, const Workload& work, const attn::Options& options);

extern template const std::vector<Contestant<float>>& contestants();
extern template const std::vector<Contestant<double>>& contestants();
extern template void enter(Contestant<float>);
extern template void enter(Contestant<double>);
extern template attn::Tensor<double, 4> oracle(const Inputs<float>&, const Workload&, const attn::Options&);
extern template attn::Tensor<long double, 4> oracle(const Inputs<double>&, const Workload&, const attn::Options&);

}  // namespace bench
