// expect: attn: the first sentence
#ifdef ATTN_KO
static_assert(false, "attn: the first sentence");
static_assert(false, "attn: the second sentence");
#endif
int main() {}
