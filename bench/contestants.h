// Contestants: a contestant is a name and a way to compute attention. Everything else in this folder treats them alike.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "workload.h"

namespace bench {

/// The scalar type that results in T are compared with.
template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

template <class T>
struct Contestant {
  std::string name;

  /// Does what a user does once for a shape, such as packing weights or building a plan, and returns the call that is
  /// timed. The arguments outlive that call.
  std::function<void()> (*prepare)(attn::Tensor<T, 4>& out, const Inputs<T>& in, const Workload& work,
                                   const attn::Options& options);

  /// Why it takes no part in the work, in a few words; empty if it takes part.
  std::string_view (*declines)(const Workload& work, const attn::Options& options);
};

/// All contestants. The others are compared with the first.
template <class T>
const std::vector<Contestant<T>>& contestants();

/// Adds a contestant, before the first row is measured.
template <class T>
void enter(Contestant<T> contestant);

/// The work by its definition, in the next wider scalar type.
template <class T>
attn::Tensor<Wider<T>, 4> oracle(const Inputs<T>& in, const Workload& work, const attn::Options& options);

extern template const std::vector<Contestant<float>>& contestants();
extern template const std::vector<Contestant<double>>& contestants();
extern template void enter(Contestant<float>);
extern template void enter(Contestant<double>);
extern template attn::Tensor<double, 4> oracle(const Inputs<float>&, const Workload&, const attn::Options&);
extern template attn::Tensor<long double, 4> oracle(const Inputs<double>&, const Workload&, const attn::Options&);

}  // namespace bench
