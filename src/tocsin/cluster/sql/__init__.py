"""Channel SQL without Spark: application files and their plan, channel queries, `near` and its grid."""
