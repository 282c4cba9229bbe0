"""The dashboard: one page, no build step."""
