// A header that the table does not know.
#pragma once
