// A header with a floor.
#pragma once
