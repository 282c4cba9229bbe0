"""A list of conformance cases for MQTT servers. It runs against any host and port: `python -m …mqtt_conformance`.

The cases with the source `paho` cover what Eclipse Paho's interoperability suite (`client_test.py`, `client_test5.py`)
checks; the others each check a normative statement of the specification, which they name.
"""
