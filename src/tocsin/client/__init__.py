"""The SDK: publisher and subscriber."""
