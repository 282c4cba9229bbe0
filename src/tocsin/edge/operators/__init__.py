"""Stream operators: one contract, stateless and stateful ones. No I/O, no clock: event time is handed in."""
