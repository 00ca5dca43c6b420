// A program whose units expect precompiled loops for all scalars, and that links those for float only.
#pragma once

float mean_of_floats();
float mean_of_halves();
