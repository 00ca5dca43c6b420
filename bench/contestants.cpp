#include "contestants.h"

namespace attn::detail::inline ATTN_BUILT_FOR {
// long double is the reference for double. attn/instantiate_long_double.h would also instantiate all loops, which take
// 14 s to compile.
template void naive<long double>(const DTypeView<long double>&, const TensorView<long double, 3>&,
                                 const KeptLseRests<long double>&, const DTypeView<long double>&,
                                 const DTypeView<const long double>&, const DTypeView<const long double>&,
                                 const DTypeView<const long double>&, const NaiveMods<long double>&, const Problem&,
                                 const Executor&);
}  // namespace attn::detail::inline ATTN_BUILT_FOR

namespace bench {

namespace {

template <class T>
std::function<void()> prepare_naive(attn::Tensor<T, 4>& out, const Inputs<T>& in, const Workload& work,
                                    const attn::Options& options) {
  return with_mods(work, [&](auto mods) -> std::function<void()> {
    return [&out, &in, mods, options] { attn::naive_attention_into(out, in.q(), in.k(), in.v(), mods, options); };
  });
}

template <class T>
std::function<void()> prepare_flash(attn::Tensor<T, 4>& out, const Inputs<T>& in, const Workload& work,
                                    const attn::Options& options) {
  return with_mods(work, [&](auto mods) -> std::function<void()> {
    return [&out, &in, mods, options] { attn::attention_into(out, in.q(), in.k(), in.v(), mods, options); };
  });
}

std::string_view scores_must_fit(const Workload& work, const attn::Options& options) {
  constexpr double kLimit = 4e9;  // half the memory of a small machine
  const double bytes = work.scalar == Scalar::float32 ? 4 : 8;
  const double scores = static_cast<double>(work.q_len) * static_cast<double>(work.kv_len);
  return scores * bytes * options.executor.concurrency() <= kLimit ? "" : "its scores do not fit";
}

std::string_view never(const Workload&, const attn::Options&) { return ""; }

template <class T>
std::vector<Contestant<T>>& entered() {
  static std::vector<Contestant<T>> all = {{"naive", prepare_naive<T>, scores_must_fit},
                                           {"flash", prepare_flash<T>, never}};
  return all;
}

template <class To, class From>
attn::Tensor<To, 4> converted(const attn::Tensor<From, 4>& t) {
  auto wide = attn::Tensor<To, 4>::uninitialized(t.shape());
  std::copy_n(t.data(), t.size(), wide.data());
  return wide;
}

}  // namespace

template <class T>
const std::vector<Contestant<T>>& contestants() {
  return entered<T>();
}

template <class T>
void enter(Contestant<T> contestant) {
  entered<T>().push_back(std::move(contestant));
}

template <class T>
attn::Tensor<Wider<T>, 4> oracle(const Inputs<T>& in, const Workload& work, const attn::Options& options) {
  using Wide = Wider<T>;
  const Inputs<Wide> wide{in.layout, converted<Wide>(in.q_numbers), converted<Wide>(in.k_numbers),
                          converted<Wide>(in.v_numbers)};
  auto out = make_output<Wide>(work);
  with_mods(work, [&](auto mods) { attn::naive_attention_into(out, wide.q(), wide.k(), wide.v(), mods, options); });
  return out;
}

template const std::vector<Contestant<float>>& contestants();
template const std::vector<Contestant<double>>& contestants();
template void enter(Contestant<float>);
template void enter(Contestant<double>);
template attn::Tensor<double, 4> oracle(const Inputs<float>&, const Workload&, const attn::Options&);
template attn::Tensor<long double, 4> oracle(const Inputs<double>&, const Workload&, const attn::Options&);

}  // namespace bench
