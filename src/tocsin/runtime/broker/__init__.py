"""The broker process: asyncio around the core in `tocsin.broker`."""
