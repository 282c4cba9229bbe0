"""The coordinator as an asyncio process around `tocsin.coordinator`."""
