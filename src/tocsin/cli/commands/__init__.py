"""One module per command of `tocsin`."""
