"""A channel's query: what it reads, its markers, and the SQL that runs it for all subscriptions at once.

The door for `declarations` and for the Spark side; the work is done in `query_parse` and `query_sql`.
"""

from tocsin.cluster.sql.query_parse import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW, ViewOf, to_lateral_sql, to_single_sql

__all__ = [
    "SUBSCRIPTIONS_VIEW",
    "ChannelQuery",
    "ViewOf",
    "parse_channel_query",
    "to_lateral_sql",
    "to_single_sql",
]
