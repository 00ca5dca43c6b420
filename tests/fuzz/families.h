// All families of the campaign.
#pragma once

#include "case.h"

namespace fuzz {

void tensors_float(Case&);
void tensors_double(Case&);
void tensors_long_double(Case&);
void tensors_half(Case&);
void tensors_mixed(Case&);
void named_mods(Case&);
void matrices(Case&);
void weights(Case&);
void merges(Case&);
void caches(Case&);
void paged_caches(Case&);
void pages(Case&);
void listed_keys(Case&);
void listed_pages(Case&);
void multi_head(Case&);
void recurrences(Case&);
void additive(Case&);
/// Rows of scores with a large constant, and keys with a common component: see shifted_call.h.
void shifted_float(Case&);
void shifted_double(Case&);
void shifted_half(Case&);
void shifted_bfloat16(Case&);
void shifted_mixed(Case&);

constexpr Family kFamilies[] = {
    {"float", 26, tensors_float},
    {"double", 6, tensors_double},
    {"long_double", 3, tensors_long_double},
    {"half", 5, tensors_half},
    {"mixed", 7, tensors_mixed},
    {"named", 14, named_mods},
    {"matrices", 10, matrices},
    {"weights", 6, weights},
    {"merges", 4, merges},
    {"caches", 7, caches},
    {"paged", 7, paged_caches},
    {"pages", 3, pages},
    {"listed_keys", 5, listed_keys},
    {"listed_pages", 4, listed_pages},
    {"layers", 3, multi_head},
    {"recurrences", 8, recurrences},
    {"additive", 3, additive},
    {"shifted_float", 2, shifted_float},
    {"shifted_double", 1, shifted_double},
    {"shifted_half", 1, shifted_half},
    {"shifted_bf16", 1, shifted_bfloat16},
    {"shifted_mixed", 1, shifted_mixed},
};

}  // namespace fuzz
