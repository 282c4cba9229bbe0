"""The emergency city on a network of real processes, with an audit of every notification; see docs/demo.md."""
