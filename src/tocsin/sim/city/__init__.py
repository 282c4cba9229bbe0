"""A simulated city: streets, people moving on them, and their subscriptions."""
