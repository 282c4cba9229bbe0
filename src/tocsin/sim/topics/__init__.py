"""Simulated topics: brokers, agents, mobile clients and moving homes [ePulsar]."""
