"""A gateway as a process of its own: it accepts records into shared logs, without Spark."""
