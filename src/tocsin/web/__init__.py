"""The dashboard, one page without a build step, and the replay of a recorded or simulated trace on it."""

from pathlib import Path
from typing import Final

PAGES: Final = Path(__file__).parent / "static"
"""Folder of index.html and its files, which the coordinator and the replay serve."""
