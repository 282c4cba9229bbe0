"""Security: what a caller must not be able to do, one file a subject."""
