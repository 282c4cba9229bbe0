"""Decisions about which broker holds which subscriber [BAD §4–§5]."""
