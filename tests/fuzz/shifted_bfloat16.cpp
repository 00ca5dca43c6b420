#include "shifted_call.h"

namespace fuzz::shifted {
void of_bfloat16(Case& c, Report& report) { run_call<Eigen::bfloat16>(c, report); }
}  // namespace fuzz::shifted
