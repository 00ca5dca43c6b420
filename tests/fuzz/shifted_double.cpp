#include "families.h"
#include "shifted_call.h"

void fuzz::shifted_double(Case& c) { shifted::run_call<double>(c); }
