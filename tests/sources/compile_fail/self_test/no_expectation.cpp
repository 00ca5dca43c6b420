#ifdef ATTN_KO
static_assert(false, "a message that is not expected");
#endif
int main() {}
