"""The only folder that imports pyspark: session, ingestion, channel execution, writing and merging of files."""
