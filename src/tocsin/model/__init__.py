"""Values that every part shares: ids, entities, cursors, snapshots, plans, trace rows. No I/O, no clock."""
