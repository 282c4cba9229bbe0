"""Simulated broker networks for the balancing policies [BAD §6]."""
