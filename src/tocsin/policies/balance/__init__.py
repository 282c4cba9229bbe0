"""Policies that decide which broker serves which subscriber [BAD §4–§5]."""
