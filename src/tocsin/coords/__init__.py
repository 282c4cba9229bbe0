"""Network coordinates: the value, the estimator, synthetic round-trip-time worlds. Pure."""
