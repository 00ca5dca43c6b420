// The room around it.
#pragma once
