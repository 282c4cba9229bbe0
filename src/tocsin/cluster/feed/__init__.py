"""The path from a publisher's request to records on disk: forms, checks, keys, the feed log."""
