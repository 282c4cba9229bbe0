"""The broker as an asyncio process around `tocsin.broker`."""
