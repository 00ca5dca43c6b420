// The kernel.
#pragma once
