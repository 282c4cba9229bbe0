"""`tocsin-spark-python`: the program that Spark starts on this machine instead of `python`.

Spark puts its own pyspark.zip first on a Python process's path. The zip holds only sources, so each process compiles
pyspark again: 0.7 s of a core, for four processes before the first record and one for every dataset that is fed. The
installed pyspark is the same and already compiled. This program removes Spark's archives from the path and then runs
like `python`.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path


def interpreter() -> str:
    """The program to start on this machine: plain Python with the user's own Spark, which has its own pyspark."""
    quick = Path(sysconfig.get_path("scripts"), "tocsin-spark-python")
    return str(quick) if "SPARK_HOME" not in os.environ and quick.exists() else sys.executable


def main() -> None:
    """Run `-m MODULE …` or `-c CODE …`: Spark uses no other options."""
    option, what, *rest = sys.argv[1:]
    archives = f"{os.environ['SPARK_HOME']}/"
    sys.path[:] = [str(Path.cwd()), *(entry for entry in sys.path[1:] if not entry.startswith(archives))]
    sys.argv = [option, *rest]
    if option == "-c":
        exec(what, {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)
