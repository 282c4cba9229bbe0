"""Publish news: python publisher.py TOPIC HEADLINE…  The address and the token come from the environment."""

from __future__ import annotations

import os
import sys
import uuid

from tocsin.client import sync


def main() -> None:
    topic, headlines = sys.argv[1], sys.argv[2:]
    cluster = os.environ.get("TOCSIN_URL", "http://127.0.0.1:8571")
    with sync.Publisher(cluster, os.environ["TOCSIN_TOKEN"]) as publisher:
        published = publisher.publish(
            "News", [{"id": uuid.uuid4().hex, "topic": topic, "headline": headline} for headline in headlines]
        )
    print(f"{published.accepted} published")


if __name__ == "__main__":
    main()
