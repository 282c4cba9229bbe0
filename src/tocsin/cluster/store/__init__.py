"""Files under the data root: written once, merged, read by cursor, given out as Arrow, JSON lines or GeoJSON."""
