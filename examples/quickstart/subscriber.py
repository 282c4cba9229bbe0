"""Print news about a topic as it arrives: python subscriber.py USER TOPIC

Ctrl-C ends the program. The next start resumes after the last printed headline.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from tocsin.client import Subscriber


class Item(msgspec.Struct):
    id: str
    headline: str


async def main() -> None:
    user, topic = sys.argv[1:3]
    coordinator = os.environ.get("TOCSIN_COORDINATOR_URL", "http://127.0.0.1:8570")
    async with Subscriber(
        coordinator, user=user, token=os.environ["TOCSIN_TOKEN"], state=f"{user}.state.json"
    ) as subscriber:
        news = await subscriber.subscribe("NewsAbout", {"topic": topic}, type=Item)
        print(f"{user} gets news about {topic} from {await subscriber.connected()}", flush=True)
        async for item in news:
            print(item.value.headline, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
