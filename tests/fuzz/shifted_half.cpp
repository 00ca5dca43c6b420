#include "shifted_call.h"

namespace fuzz::shifted {
void of_half(Case& c, Report& report) { run_call<Eigen::half>(c, report); }
}  // namespace fuzz::shifted
