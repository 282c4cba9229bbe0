"""The parts that every server shares: settings, authentication, answers, pages, metrics and logging."""
