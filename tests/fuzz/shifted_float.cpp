#include "shifted_call.h"
#include "shifted_scalars.h"

namespace fuzz::shifted {
void of_float(Case& c, Report& report) { run_call<float>(c, report); }
}  // namespace fuzz::shifted
