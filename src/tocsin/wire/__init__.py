"""Protocols between processes: messages, codecs, paths and error codes. Imports only `model`."""
