"""The dashboard: one page, no build step; and the replay that shows a recorded or simulated trace on it."""

from pathlib import Path
from typing import Final

PAGES: Final = Path(__file__).parent / "static"
"""What the coordinator and the replay serve: index.html and its files."""
