#include "families.h"
#include "shifted_call.h"

void fuzz::shifted_half(Case& c) { shifted::run_call<Eigen::half>(c); }
