"""Pure `(snapshot, params, rng) -> plan`: the load model, placement, migration, shuffle."""
