"""One module per benchmark of `tocsin bench`. Each docstring lists what is timed, compared, checked and printed."""
