// A higher header.
#pragma once
