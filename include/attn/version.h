// The version of the library, the only place where it is written.
#pragma once

/// Grows when programs must change.
#define ATTN_VERSION_MAJOR 0
/// Grows with features; before 1.0 it may change the interface.
#define ATTN_VERSION_MINOR 1
/// Grows with corrections.
#define ATTN_VERSION_PATCH 0
