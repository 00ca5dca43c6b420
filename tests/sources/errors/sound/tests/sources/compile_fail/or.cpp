// expect: attn: one of [a; b]
// expect: | and both
