"""Spark's own network: the driver listens on loopback for `local` masters, and asks for a secret otherwise.

Spark's driver and block manager listen on the machine's address, by default without authentication: any process that
reaches them can run code in the driver. YARN and Kubernetes distribute a secret by themselves. In a standalone cluster
every process must know the same one: `spark_secret_file` holds it here, and master and workers take it from the
environment. A flag would show it to every user that can list processes.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SECRET = "_SPARK_AUTH_SECRET"
"""Environment variable from which Spark's SecurityManager takes the secret before it looks at its settings."""
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_AUTHENTICATED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


def network_settings(master: str) -> Mapping[str, str]:
    """Settings of a session on this master. On a standalone cluster without a secret there are none."""
    if master.startswith("local"):
        return _LOOPBACK
    if is_standalone(master) and _SECRET not in os.environ:
        return {}
    return _AUTHENTICATED


def is_standalone(master: str) -> bool:
    return master.startswith("spark://")


def use_secret(path: str) -> None:
    """Give the secret in this file to the driver's JVM that this process starts later.

    The driver accepts the secret as a setting only, and pyspark passes settings as flags, except for a file of them.
    """
    secret = Path(path).read_text(encoding="utf-8").strip()
    os.environ[_SECRET] = secret
    settings = Path(tempfile.mkdtemp(prefix="tocsin-spark-"), "secret.conf")  # only this user may enter the folder
    settings.write_text("spark.authenticate.secret=" + secret.replace("\\", "\\\\") + "\n", encoding="utf-8")
    others = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    os.environ[_SUBMIT_ARGUMENTS] = f"--properties-file {shlex.quote(str(settings))} --load-spark-defaults {others}"
