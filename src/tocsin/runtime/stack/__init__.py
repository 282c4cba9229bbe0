"""A whole network on one machine: starts the processes, watches them and restarts them."""
