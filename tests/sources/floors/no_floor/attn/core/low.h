// A header that is missing from the table of floors.
#pragma once
