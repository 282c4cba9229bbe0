"""`tocsin chaos`: a real network under faults, and an account of what became of every record."""
