// expect: a message that never comes
int main() {}
