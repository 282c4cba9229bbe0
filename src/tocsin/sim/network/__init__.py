"""The real broker, coordinator and client session on a simulated network."""
