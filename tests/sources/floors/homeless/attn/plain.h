// A header that is missing from the table.
#pragma once
