"""Decisions of a site: which relay serves which subscribers, and which publishers slow down [ePEER]."""
