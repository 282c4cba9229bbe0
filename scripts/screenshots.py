"""Takes the screenshots of the dashboard in docs/images: `.venv/bin/python scripts/screenshots.py [TRACE]`.

TRACE is any recording; the default is out/demo/trace.parquet, which `make demo` writes. If it does not exist, the
script simulates a day of the paper's testbed, which has no streets and no emergencies. Needs Chromium and playwright
(`make system`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parent.parent
TOCSIN = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]
MAX_BYTES = 400_000
DESK = {"viewport": {"width": 1366, "height": 768}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
PICTURES: dict[str, dict[str, Any]] = {
    "dashboard-light": {**DESK, "color_scheme": "light"},
    "dashboard-dark": {**DESK, "color_scheme": "dark"},
    "dashboard-phone": {**PHONE, "color_scheme": "light"},
}
LEAD = 0.22
"""Share of the trace that is played fast before a screenshot, to fill the curves and the feed."""
LEAD_S = 16.0
"""Duration of that playing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=ROOT / "out" / "demo" / "trace.parquet")
    parser.add_argument("--at", type=float, default=0.7, help="position in the trace, from 0 to 1 (default: 0.7)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is missing: `make system` installs it.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        trace = arguments.trace if arguments.trace.exists() else simulated(Path(folder) / "trace.parquet")
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        with replayed(trace) as address:
            for name, options in PICTURES.items():
                take(browser, address, arguments.at, options, arguments.out / f"{name}.png")
        browser.close()


def simulated(trace: Path) -> Path:
    print("There is no recording; simulating the paper's testbed.")
    subprocess.run([*TOCSIN, "bench", "sim", "--scenario", "paper-testbed", "--trace", str(trace)], check=True)
    return trace


@contextmanager
def replayed(trace: Path) -> Iterator[str]:
    command = [*TOCSIN, "replay", str(trace), "--port", "0", "--json", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


def take(browser: Browser, address: str, at: float, options: dict[str, Any], path: Path) -> None:
    context = browser.new_context(locale="en-GB", **options)
    page = context.new_page()
    page.goto(f"{address}/")
    page.wait_for_function("() => document.body.classList.contains('replay')")
    replay = page.evaluate("() => fetch('/v1/replay').then((answer) => answer.json())")
    length_s = replay["to_s"] - replay["from_s"]
    target_s = replay["from_s"] + at * length_s
    change = {"at_s": target_s - LEAD * length_s, "speed": LEAD * length_s / LEAD_S, "playing": True}
    page.evaluate(
        "(change) => fetch('/v1/replay', { method: 'PUT', headers: { 'Content-Type': 'application/json' },"
        " body: JSON.stringify(change) })",
        change,
    )
    page.wait_for_function("(target) => tocsin.state.time_s >= target", arg=target_s, timeout=120_000)
    page.screenshot(path=path)
    context.close()
    if path.stat().st_size > MAX_BYTES:  # reduce the colours
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
