// A header of another package.
#pragma once
