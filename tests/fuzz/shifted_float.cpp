#include "families.h"
#include "shifted_call.h"

void fuzz::shifted_float(Case& c) { shifted::run_call<float>(c); }
