"""The topics of which a broker is home: order, fan-out, leases and moves, without I/O."""
