"""The broker core: broker logic without I/O, `handle(event, now) -> effects`."""
