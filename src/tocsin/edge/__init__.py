"""Edge node logic without I/O: stream operators and the negotiation that moves them."""
