"""The coordinator's control loop without I/O: registry, load view, arbiter, migrations, failover."""
