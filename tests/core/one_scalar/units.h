// A program whose units are promised the loops of all scalars, and that has those of float alone.
#pragma once

float mean_of_floats();
float mean_of_halves();
