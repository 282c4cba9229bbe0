"""Write the tables of docs/settings.md from the settings classes; `--check` only says whether they are up to date.

A line `<!-- settings: broker -->` in the page is followed by the table of the settings that the broker's settings class
declares, and `<!-- settings: broker.limits -->` by the settings of the dataclass in its field `limits`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tocsin.cluster.result_server.settings import ResultServerSettings
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.edge.settings import EdgeSettings
from tocsin.runtime.http.settings import Setting, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = "| setting | default | meaning |\n|---|---|---|\n"


def tables() -> dict[str, str]:
    """Marker -> table."""
    made: dict[str, str] = {}
    for kind in (ClusterProcessSettings, ResultServerSettings, BrokerSettings, CoordinatorSettings, EdgeSettings):
        for setting in settings_of(kind):
            marker = ".".join((kind.section, *setting.path))
            made[marker] = made.get(marker, HEAD) + f"| `{setting.name}` | {default(setting)} | {setting.help} |\n"
    return made


def default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == {}:
        return "" if "Default:" in setting.help else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main() -> int:
    text, missing = PAGE.read_text(encoding="utf-8"), []
    updated = text
    for marker, table in tables().items():
        pattern = re.compile(rf"(<!-- settings: {re.escape(marker)} -->\n)(\|[^\n]*\n)*")
        if pattern.search(updated) is None:
            missing.append(marker)
        updated = pattern.sub(lambda match, table=table: match[1] + table, updated)
    if missing:
        print(f"{PAGE.name} has no line <!-- settings: … --> for {', '.join(missing)}", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        if updated != text:
            print(f"{PAGE.name} is out of date: run `python scripts/settings_tables.py`", file=sys.stderr)
        return int(updated != text)
    PAGE.write_text(updated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
