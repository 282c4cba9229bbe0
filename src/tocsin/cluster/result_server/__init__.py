"""`tocsin results`: serves pulls of results without Spark."""
