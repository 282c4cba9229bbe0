"""The asyncio processes around the pure parts: servers, links, stores, clocks."""
