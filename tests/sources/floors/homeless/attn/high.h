// A header.
#pragma once
