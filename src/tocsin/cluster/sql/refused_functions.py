"""What a channel query may not call, with the reason the author is told.

A channel reads declared datasets and computes on them: the same records give the same results however often Spark
retries a task, and nothing outside is read or run. Everything else Spark offers is allowed.
"""

from __future__ import annotations

_NOT_DETERMINISTIC = "its value differs from call to call, so an execution that is repeated would give other results"
_READS_OUTSIDE = "a channel reads declared datasets only"
_RUNS_CODE = "it runs code outside Spark SQL"
_PLACE = "its value depends on how Spark splits the data, so an execution that is repeated would give other results"
_RAISES = "one subscription's failure would stop the channel for all of them"
_EXTERNAL_NAMES = "it names a table by a computed text"

REFUSED_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE"), _NOT_DETERMINISTIC),
    **dict.fromkeys(("MONOTONICALLY_INCREASING_ID", "SPARK_PARTITION_ID"), _PLACE),
    **dict.fromkeys(("INPUT_FILE_NAME", "INPUT_FILE_BLOCK_START", "INPUT_FILE_BLOCK_LENGTH"), _PLACE),
    **dict.fromkeys(
        ("READ_FILES", "READ_KAFKA", "READ_KINESIS", "READ_PUBSUB", "CLOUD_FILES", "READ_STATESTORE"), _READS_OUTSIDE
    ),
    **dict.fromkeys(("STREAM", "TABLE", "TABLE_CHANGES", "REMOTE_QUERY"), _READS_OUTSIDE),
    **dict.fromkeys(("REFLECT", "TRY_REFLECT", "JAVA_METHOD"), _RUNS_CODE),
    **dict.fromkeys(("RAISE_ERROR", "ASSERT_TRUE"), _RAISES),
    "IDENTIFIER": _EXTERNAL_NAMES,
}
