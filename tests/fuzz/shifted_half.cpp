#include "shifted_call.h"
#include "shifted_scalars.h"

namespace fuzz::shifted {
void of_half(Case& c, Report& report) { run_call<Eigen::half>(c, report); }
}  // namespace fuzz::shifted
