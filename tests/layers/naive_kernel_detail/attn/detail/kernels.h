// Layer 1: kernels of a lower layer, so that only the rule about the definition is broken.
#pragma once
