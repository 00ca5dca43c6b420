namespace attn {

inline auto twice() {
  return score_mod([](auto x, auto) { return 2 * x; });
}

inline auto thrice() {
  return score_mod([](auto x, auto) { return 3 * x; });
}

}  // namespace attn
