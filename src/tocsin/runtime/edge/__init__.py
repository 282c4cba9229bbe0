"""The process of an edge node, and of the root with the tree control."""
