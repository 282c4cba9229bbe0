"""The only place that imports pyspark: session, ingestion, channel execution, compaction."""
