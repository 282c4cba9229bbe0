"""What travels between parts: messages, their codecs, error codes. Imports only `model`."""
