"""Broker logic without I/O: `handle(event, now) -> effects`."""
