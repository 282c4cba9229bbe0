"""Files under the data root: written once, merged, read by cursor."""
