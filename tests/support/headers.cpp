// For the precompiled header alone.
