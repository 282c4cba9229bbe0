"""Values every part shares: ids, entities, cursors, loads, snapshots, plans. No I/O, no clock."""
