"""The machine and the versions that a benchmark ran with: a figure without them cannot be compared."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEER_VERSIONS = {"nats-server": ("--version",), "mosquitto": ("-h",)}
"""Arguments with which a peer prints its version."""


def described_machine() -> dict[str, Any]:
    """Processor, cores, load before the benchmark, and the versions of what it runs."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "spark": version("pyspark"),
        "java": _java(),
        "tocsin": version("tocsin"),
    }


def find_program(program: str) -> str | None:
    """The path of a server program, also if it is only on the administrator's path."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def program_version(program: str) -> str | None:
    """The version that an installed peer prints; None if it is not installed or prints none."""
    path = find_program(program)
    return None if path is None else _printed_version(path, *PEER_VERSIONS[program])


def kernel_memory_bytes() -> int | None:
    """Slabs and TCP buffers of the whole machine; None if the kernel does not say."""
    try:
        slab = re.search(r"^Slab:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
        tcp = re.search(r"^TCP: .* mem (\d+)", Path("/proc/net/sockstat").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return None if slab is None or tcp is None else int(slab[1]) * 1024 + int(tcp[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return platform.processor()
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return names[0] if names else platform.machine()


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    return None if path is None else _printed_version(path, "-version")


def _printed_version(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return None
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else None
