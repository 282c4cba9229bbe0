"""The emergency city on a network of real processes, with an account of every notification; see docs/demo.md."""
