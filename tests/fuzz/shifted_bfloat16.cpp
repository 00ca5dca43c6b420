#include "shifted_call.h"
#include "shifted_scalars.h"

namespace fuzz::shifted {
void of_bfloat16(Case& c, Report& report) { run_call<Eigen::bfloat16>(c, report); }
}  // namespace fuzz::shifted
