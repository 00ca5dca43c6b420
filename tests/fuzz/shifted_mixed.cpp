#include "shifted_call.h"
#include "shifted_scalars.h"

namespace fuzz::shifted {
void of_mixed(Case& c, Report& report) {
  if (c.random.percent(50)) return run_call<float, Eigen::bfloat16, Eigen::bfloat16>(c, report);
  run_call<Eigen::bfloat16, float, Eigen::half>(c, report);
}
}  // namespace fuzz::shifted
