#include "shifted_call.h"
#include "shifted_scalars.h"

namespace fuzz::shifted {
void of_double(Case& c, Report& report) { run_call<double>(c, report); }
}  // namespace fuzz::shifted
