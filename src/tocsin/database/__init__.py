"""SQL databases for stored state, used by the data cluster's catalog and the coordinator's store."""
