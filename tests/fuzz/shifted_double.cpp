#include "shifted_call.h"

namespace fuzz::shifted {
void of_double(Case& c, Report& report) { run_call<double>(c, report); }
}  // namespace fuzz::shifted
