"""The data cluster as a process: its HTTP server, its settings, group commit and the scheduling of executions."""
