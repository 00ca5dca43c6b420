#include "families.h"
#include "shifted_call.h"

void fuzz::shifted_bfloat16(Case& c) { shifted::run_call<Eigen::bfloat16>(c); }
