namespace attn {
namespace detail {

template <class T>
auto helper(T t) {
  return t;
}

}  // namespace detail

inline auto diagonal() {
  return mask_mod([](auto p) { return p.q == p.kv; });
}

}  // namespace attn
