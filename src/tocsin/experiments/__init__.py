"""Every table and figure of the seed documents, one module each, run as Spark jobs over seeds and settings."""
