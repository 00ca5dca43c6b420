#include "families.h"
#include "shifted_call.h"

void fuzz::shifted_mixed(Case& c) {
  if (c.random.percent(50)) return shifted::run_call<float, Eigen::bfloat16, Eigen::bfloat16>(c);
  shifted::run_call<Eigen::bfloat16, float, Eigen::half>(c);
}
