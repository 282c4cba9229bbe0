"""`tocsin chaos`: injects faults into a real network and accounts for every record."""
