// expect: always wrong
static_assert(false, "always wrong");
int main() {}
