"""A simulated tree of edge nodes that negotiate operators [AMI]."""
