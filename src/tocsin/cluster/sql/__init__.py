"""Channel SQL without Spark: application files, channel queries, `near` and its grid, and what a statement will do."""
