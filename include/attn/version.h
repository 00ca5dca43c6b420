// The version of the library, which is defined only here.
#pragma once

/// Incremented for breaking changes.
#define ATTN_VERSION_MAJOR 0
/// Incremented for features; before 1.0, also for breaking changes.
#define ATTN_VERSION_MINOR 1
/// Incremented for fixes.
#define ATTN_VERSION_PATCH 0
