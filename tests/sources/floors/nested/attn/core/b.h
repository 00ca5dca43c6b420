// A header of the outer folder.
#pragma once
