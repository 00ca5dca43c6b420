// Empty source of the precompiled header's target.
