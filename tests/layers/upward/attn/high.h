// Layer 2: a higher header.
#pragma once
