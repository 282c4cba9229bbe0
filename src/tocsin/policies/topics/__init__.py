"""Decisions about which broker is the home of which topic [ePulsar]."""
