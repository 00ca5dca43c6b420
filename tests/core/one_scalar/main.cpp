#include <iostream>

#include "one_scalar/units.h"

int main() { std::cout << "means " << mean_of_floats() << ' ' << mean_of_halves() << '\n'; }
