// with: -I{here}/old_eigen
// expect: attn needs Eigen 3.4 or newer, an older one stands in the include path: put the newer one before it, with -I
#include <attn/attn.h>
