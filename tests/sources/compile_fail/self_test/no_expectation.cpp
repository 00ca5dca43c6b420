#ifdef ATTN_KO
static_assert(false, "a message that nobody waits for");
#endif
int main() {}
