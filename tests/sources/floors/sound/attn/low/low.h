// A lower header.
#pragma once
