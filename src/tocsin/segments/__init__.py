"""Pieces of append-only logs: segment files, durable writes. Only the standard library is imported."""
