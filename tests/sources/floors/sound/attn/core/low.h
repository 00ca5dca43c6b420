// A header of the core.
#pragma once
