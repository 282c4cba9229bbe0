"""Simulated sites: a head, its edges, their publishers and subscribers [ePEER]."""
