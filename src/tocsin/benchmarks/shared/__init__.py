"""What several benchmarks share: the harness, a data cluster without Spark, the receiving processes."""
