// The neighbour.
#pragma once
