// Two translation units that both use the whole library; linked together they show that every definition in a header
// is inline or a template.
#pragma once

#include <Eigen/Core>

Eigen::MatrixXf windowed(const Eigen::MatrixXf& x);
Eigen::MatrixXf capped(const Eigen::MatrixXf& x);
