// A test.

int main() {}
