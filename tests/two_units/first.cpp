#include "two_units/units.h"

#include <attn/attn.h>

Eigen::MatrixXf windowed(const Eigen::MatrixXf& x) { return attn::attention(x, x, x, attn::sliding_window(1)).out; }
