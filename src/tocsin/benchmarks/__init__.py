"""One module per benchmark of `tocsin bench`."""
