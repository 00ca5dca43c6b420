// Layer 3: the kernel.
#pragma once
