"""The tables of the coordinator's store."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()
_ID = sa.String(256)

KEYS = sa.Table(
    "coordinator_keys", METADATA,
    sa.Column("name", sa.String(64), primary_key=True), sa.Column("content", sa.Text, nullable=False),
)  # fmt: skip
BROKERS = sa.Table(
    "coordinator_brokers", METADATA,
    sa.Column("broker", _ID, primary_key=True), sa.Column("address", sa.Text, nullable=False),
    sa.Column("incarnation", sa.Text, nullable=False), sa.Column("capacity", sa.Double, nullable=False),
    sa.Column("lat", sa.Double), sa.Column("lon", sa.Double), sa.Column("draining", sa.Boolean, nullable=False),
    sa.Column("dead", sa.Boolean, nullable=False), sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("dismissed", sa.Boolean, nullable=False),
    sa.Column("role", sa.String(16)), sa.Column("standby", sa.Boolean),
)  # fmt: skip
CAPACITIES = sa.Table(
    "coordinator_capacities", METADATA,
    sa.Column("broker", _ID, primary_key=True), sa.Column("in_bytes_per_s", sa.Double),
    sa.Column("out_bytes_per_s", sa.Double), sa.Column("matched_per_s", sa.Double),
)  # fmt: skip
SUBSCRIBERS = sa.Table(
    "coordinator_subscribers", METADATA,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("lat", sa.Double), sa.Column("lon", sa.Double),
    sa.Column("coordinate", sa.Text), sa.Column("home", _ID), sa.Column("moved_at_s", sa.Double),
    sa.Column("deleted", sa.Boolean, nullable=False), sa.Column("uncertain", sa.Boolean, nullable=False),
)  # fmt: skip
SUBSCRIPTIONS = sa.Table(
    "coordinator_subscriptions", METADATA,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("subscription", _ID, primary_key=True),
    sa.Column("channel", sa.Text, nullable=False), sa.Column("parameters", sa.Text, nullable=False),
    sa.Column("cursor", sa.Text, nullable=False),
)  # fmt: skip
WEBHOOKS = sa.Table(
    "coordinator_webhooks", METADATA,
    sa.Column("subscriber", _ID, primary_key=True), sa.Column("url", sa.Text, nullable=False),
    sa.Column("secrets", sa.Text, nullable=False),
)  # fmt: skip
MIGRATIONS = sa.Table(
    "coordinator_migrations", METADATA,
    sa.Column("migration", _ID, primary_key=True), sa.Column("subscriber", _ID, nullable=False),
    sa.Column("source", _ID, nullable=False), sa.Column("target", _ID, nullable=False),
    sa.Column("step", sa.Text, nullable=False), sa.Column("urgency", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False), sa.Column("began_s", sa.Double, nullable=False),
    sa.Column("claimed", sa.Boolean, nullable=False), sa.Column("adopted", sa.Boolean, nullable=False),
)  # fmt: skip
FACTS = sa.Table(
    "coordinator_facts", METADATA,
    sa.Column("name", _ID, primary_key=True), sa.Column("value", sa.Text, nullable=False),
)  # fmt: skip

REVOCATIONS = sa.Table(
    "coordinator_revocations", METADATA,
    sa.Column("kind", sa.String(16), primary_key=True), sa.Column("name", _ID, primary_key=True),
    sa.Column("at_s", sa.Double, nullable=False),
)  # fmt: skip

TOPICS = sa.Table(
    "coordinator_topics", METADATA,
    sa.Column("topic", _ID, primary_key=True), sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("within_s", sa.Double), sa.Column("made_on_use", sa.Boolean, nullable=False),
    sa.Column("home", _ID), sa.Column("incarnation", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False), sa.Column("record_into", sa.Text),
    sa.Column("recording", sa.Text), sa.Column("made_by", _ID),
    sa.Column("delay_s", sa.Double), sa.Column("protected_per_s", sa.Double),
)  # fmt: skip

TOPIC_LOGS = sa.Table(
    "coordinator_topic_logs", METADATA,
    sa.Column("topic", _ID, primary_key=True), sa.Column("replicas", sa.Text, nullable=False),
    sa.Column("quorum", sa.Integer, nullable=False), sa.Column("retain_bytes", sa.BigInteger, nullable=False),
    sa.Column("retain_s", sa.Double),
)  # fmt: skip

TOPIC_MOVES = sa.Table(
    "coordinator_topic_moves", METADATA,
    sa.Column("topic", _ID, primary_key=True), sa.Column("target", _ID, nullable=False),
    sa.Column("incarnation", sa.Text, nullable=False), sa.Column("epoch", sa.BigInteger, nullable=False),
)  # fmt: skip
