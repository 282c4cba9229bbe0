"""The files and formats that an application may name: STATIC datasets and feeds read under configured folders only.

An author of applications is not an administrator of the machine. Without these rules, a STATIC dataset could load the
server's own secrets, and a feed could connect anywhere or delete the files that it has read. Paths are compared after
links and `..` are resolved, and the resolved path is the one that is read. Files in the data root, which holds the
catalog and the administrator's token, and files with a hidden name are never read.

Looks at the file system, reads no file. `cluster.datasets` asks it before Spark sees a path or an option.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tocsin.model.entities import Feed
from tocsin.wire.errors import Code, TocsinError

FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text"})
_KAFKA = """
    assign failondataloss groupidprefix includeheaders kafka.bootstrap.servers kafka.client.id kafka.group.id
    kafka.request.timeout.ms kafka.sasl.jaas.config kafka.sasl.mechanism kafka.security.protocol
    kafka.session.timeout.ms maxoffsetspertrigger minoffsetspertrigger minpartitions startingoffsets
    startingoffsetsbytimestamp startingtimestamp subscribe subscribepattern"""
"""Others name classes that Kafka's client loads, or files that it opens."""
_KAFKA_LOGINS = tuple(f"org.apache.kafka.common.security.{module}" for module in ("plain.Plain", "scram.Scram"))
"""The login modules that kafka.sasl.jaas.config may name. Others load classes from an address."""
_OPTIONS: Mapping[str, frozenset[str]] = {
    "kafka": frozenset(_KAFKA.split()),
    "rate": frozenset({"numpartitions", "rampuptime", "rowspersecond"}),
    "rate-micro-batch": frozenset({"advancemillisperbatch", "numpartitions", "rowsperbatch", "starttimestamp"}),
    "socket": frozenset({"host", "includetimestamp", "port"}),
}
"""The options of formats that read no files, in lower case. Options of a format that is not listed are not checked."""
_REFUSED_FILE_OPTIONS = {
    "cleansource": "it deletes or moves files",
    "sourcearchivedir": "it moves files",
    "avroschemaurl": "it names a file",
    "rowvalidationxsdpath": "it names a file",
    "paths": "a feed reads one path",
}
_PATTERNS = frozenset("*?[]{}\\")
_MOST_ENTRIES = 100_000
"""The most entries of a folder that are examined for links."""


class Sources:
    def __init__(self, files: str, formats: str, private: Iterable[Path]) -> None:
        """`files` and `formats` are lists with commas; `private` are folders that no application may read."""
        self._configured = files
        self._roots = [_normal(root.strip()) for root in files.split(",") if root.strip()]
        self._formats = {format_.strip().lower() for format_ in formats.split(",") if format_.strip()}
        self._private = [os.path.realpath(folder) for folder in private]

    def file(self, path: str) -> str:
        """The path to read for the file or folder of a STATIC dataset. Raises if an application may not read it."""
        if _PATTERNS & set(path):
            raise _refused(f"'{path}' is a pattern: expected the path of one file or folder")
        return self._resolved(path)

    def feed(self, feed: Feed) -> Feed:
        """The feed with the path to read. Raises if an application may not use its format, options or path."""
        format_ = feed.format.lower()
        if format_ not in self._formats:
            known = ", ".join(sorted(self._formats)) or "none"
            message = f"feed {feed.name}: this data cluster has no feeds from {feed.format} (it has: {known})"
            raise _refused(f"{message}; an administrator can add a format to the setting feed_formats")
        allowed = _OPTIONS.get(format_)
        for option, value in feed.options.items():
            if allowed is not None and option.lower() not in allowed:
                raise _refused(f"feed {feed.name}: {option} is not an option of {feed.format} that a feed may set")
            if option.lower() == "kafka.sasl.jaas.config" and not value.strip().startswith(_KAFKA_LOGINS):
                raise _refused(f"feed {feed.name}: {option} may name PlainLoginModule or ScramLoginModule only")
        return self._file_feed(feed) if format_ in FILE_FORMATS else feed

    def _file_feed(self, feed: Feed) -> Feed:
        paths = [option for option in feed.options if option.lower() == "path"]
        if not paths:
            raise _refused(f"feed {feed.name}: expected the option path")
        for option in feed.options:
            reason = _REFUSED_FILE_OPTIONS.get(option.lower())
            if reason is not None:
                raise _refused(f"feed {feed.name}: the option {option} is not allowed: {reason}")
        folder, pattern = _split_pattern(feed.options[paths[0]])
        resolved = posixpath.join(self._resolved(folder or "."), *pattern)
        return replace(feed, options={**feed.options, paths[0]: resolved})

    def _resolved(self, path: str) -> str:
        normal = _normal(path)
        for root in self._roots:
            inside = _inside(normal, root)
            is_private = any(_inside(normal, folder) is not None for folder in self._private)
            if inside is None or _is_hidden(inside) or is_private:
                continue
            if Path(normal).is_dir():
                self._check_links(normal)
            return normal
        raise _refused(
            f"'{path}' is outside the folders that applications may read ({self._configured}), or is hidden there: "
            "move the file, or ask an administrator to add its folder to the setting files"
        )

    def _check_links(self, folder: str) -> None:
        """Refuse a folder with a link to a place that the application could not name itself."""
        entries = 0
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                entries += 1
                if entries > _MOST_ENTRIES:
                    raise _refused(f"'{folder}' has too many files")
                if (entry := Path(place, name)).is_symlink():
                    self._resolved(str(entry))


def _normal(path: str) -> str:
    """The path without links and `..`. An address of another file system keeps its scheme."""
    parts = urlsplit(path)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        normal = posixpath.normpath("/" + parts.path.lstrip("/"))
        return f"{parts.scheme.lower()}://{parts.netloc}{normal}"
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise _refused(f"'{path}' names another machine: expected file:///…")
    local = parts.path if parts.scheme == "file" else path
    if "\0" in local:
        raise _refused("a path cannot contain the character NUL")
    return os.path.realpath(local)


def _inside(path: str, root: str) -> Sequence[str] | None:
    """The names that lead from `root` to `path`; None if `path` is elsewhere."""
    if path == root:
        return ()
    prefix = root if root.endswith("/") else f"{root}/"
    return path.removeprefix(prefix).split("/") if path.startswith(prefix) else None


def _is_hidden(names: Sequence[str]) -> bool:
    return any(name.startswith(".") for name in names)


def _split_pattern(path: str) -> tuple[str, list[str]]:
    """(folder, names with patterns). A pattern may not lead out of the folder before it."""
    names = path.split("/")
    first = next((index for index, name in enumerate(names) if _PATTERNS & set(name)), len(names))
    pattern = names[first:]
    if any(name == ".." or {"{", "}", "\\"} & set(name) for name in pattern):
        raise _refused(f"'{path}': a pattern may contain * and ? and [ ], and no '..' after them")
    return "/".join(names[:first]) or ("/" if path.startswith("/") else ""), pattern


def _refused(message: str) -> TocsinError:
    return TocsinError(Code.BAD_SQL, message)
