"""`tocsin-spark-python`: what Spark starts on this machine where it would start `python`.

Spark begins a Python process's path with its own pyspark.zip. That holds sources only, so each process compiles pyspark
anew: 0.7 s of a core, for four processes before the first record and one for every dataset that is fed. The installed
pyspark is the same and compiled already. This takes Spark's archives from the path and goes on as `python` would.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path


def interpreter() -> str:
    """What to start on this machine. A Spark of the user's own brings a pyspark of its own."""
    quick = Path(sysconfig.get_path("scripts"), "tocsin-spark-python")
    return str(quick) if "SPARK_HOME" not in os.environ and quick.exists() else sys.executable


def main() -> None:
    """`-m MODULE …` and `-c CODE …` are all that Spark uses."""
    option, what, *rest = sys.argv[1:]
    archives = f"{os.environ['SPARK_HOME']}/"
    sys.path[:] = [str(Path.cwd()), *(entry for entry in sys.path[1:] if not entry.startswith(archives))]
    sys.argv = [option, *rest]
    if option == "-c":
        exec(what, {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)
