"""Channel SQL without Spark: application files, channel queries, `near` and its grid, and the plan of an application file."""
