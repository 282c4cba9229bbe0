"""Network coordinates: the value, the estimator, and synthetic worlds of round-trip times. Pure."""
