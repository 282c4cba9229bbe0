"""Decisions about which edge node runs which operator [AMI]."""
