"""Shared by the benchmarks: the harness, child processes, the peers, the sink, and a data cluster without Spark."""
