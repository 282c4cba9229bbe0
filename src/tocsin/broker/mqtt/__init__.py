"""MQTT 3.1.1 and 5.0 at a broker, without I/O: packets, sessions, and their relation to topics and channels."""
