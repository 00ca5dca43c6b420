// with: -I{here}/old_eigen
// expect: attn needs Eigen 3.4 or newer, but finds an older one first: add the include path of a newer one with -I
#include <attn/attn.h>
