// without: -isystem
// expect: attn needs Eigen 3.4 or newer: install it (libeigen3-dev) and compile with -I/usr/include/eigen3
#include <attn/attn.h>
