// expect: query and key disagree
#ifdef ATTN_KO
static_assert(false, "another message");
#endif
int main() {}
