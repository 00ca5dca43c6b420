// Layer 1: a lower header.
#pragma once
