"""The `tocsin` command: one file per command."""
