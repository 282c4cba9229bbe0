"""Finds the process that leads among several addresses of a coordinator or a data cluster [decision 26]."""
