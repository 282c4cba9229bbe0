"""A simulated city: streets, people who move along them, and the channels they subscribe to."""
