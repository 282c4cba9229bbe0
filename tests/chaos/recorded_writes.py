"""What a power failure may leave: records the system calls of a process, and replays them up to any point.

`strace` records every write, truncation, fsync, rename and unlink, also those of SQLite, and the acknowledgements that
the process printed. Of calls that no fsync followed, the disk may have any subset, and any part of a single write. A
file exists after a crash if it, or its folder, was fsynced after the file was created. A rename or unlink without an
fsync of the folder may have happened or not.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TRACED = (
    "openat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat"
)
_SECTOR = 512
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD_PATH = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    path: str
    data: bytes = b""
    offset: int = 0
    """The place of a write, -1 for a write at the file's position; the size of a truncation."""
    target: str = ""
    """The new name of a renamed file."""


def record_calls(module: str, folder: Path, recording: Path) -> list[Call]:
    """The calls of `python -m module folder`. Skips the test if strace is not there or may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace (make system)")
    strace = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={TRACED}", "-o", str(recording)]
    child = [sys.executable, "-m", module, str(folder)]
    ran = subprocess.run([*strace, *child], capture_output=True, text=True, check=False, timeout=300)
    if "ptrace" in ran.stderr and not recording.exists():
        pytest.skip(f"strace may not trace here: {ran.stderr.splitlines()[0]}")
    assert ran.returncode == 0, ran.stderr
    return list(calls_of(recording.read_text(encoding="ascii")))


def restore_files(files: Mapping[str, bytes], original: Path, folder: Path) -> None:
    """Write the files that a crash left into another folder."""
    for path, content in files.items():
        target = folder / Path(path).relative_to(original)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def calls_of(recording: str) -> Iterator[Call]:
    """The successful calls of a recording by `strace -f -y -xx`. Threads may interleave calls: unfinished lines are
    joined."""
    for line in _joined(recording):
        match = _CALL.match(line)
        if match is None or int(match[3]) < 0:
            continue
        name, arguments, result = match[1], match[2], int(match[3])
        texts = [_decoded(text) for text in _TEXT.findall(arguments)]
        path = _FD_PATH.match(arguments)
        on = _decoded(path[1]).decode() if path is not None else ""
        if name == "openat":
            opened = texts[0].decode()
            if "O_CREAT" in arguments:
                yield Call("create", opened)
            if "O_TRUNC" in arguments:
                yield Call("truncate", opened, offset=0)
        elif name in ("write", "writev"):
            yield Call("write", on, b"".join(texts)[:result], -1)
        elif name in ("pwrite64", "pwritev", "pwritev2"):
            _count, offset, *_flags = re.findall(r", (\d+)(?=,|$)", _TEXT.sub("", arguments))
            yield Call("write", on, b"".join(texts)[:result], int(offset))
        elif name in ("fsync", "fdatasync"):
            yield Call("fsync", on)
        elif name == "ftruncate":
            yield Call("truncate", on, offset=int(arguments.rpartition(", ")[2]))
        elif name.startswith("rename"):
            yield Call("rename", texts[0].decode(), target=texts[1].decode())
        elif name.startswith("unlink"):
            yield Call("unlink", texts[0].decode())


def _joined(recording: str) -> Iterator[str]:
    unfinished: dict[str, str] = {}
    for line in recording.splitlines():
        process = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            unfinished[process] = line.removesuffix("<unfinished ...>")
        elif "resumed>" in line:
            yield unfinished.pop(process, "") + line.partition("resumed>")[2]
        else:
            yield line


def _decoded(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    exists: bool = False
    """True if the file is certain to exist after a crash."""
    pending: list[Call] = field(default_factory=list)
    end: int = 0
    """The position of writes without an offset."""


class Disk:
    """The files under one folder: what is durable, and what the disk may have beyond it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/") + "/"
        self._files: dict[str, _File] = {}
        self._moves: list[Call] = []
        """Renames and unlinks without an fsync of their folder."""

    def apply(self, call: Call) -> None:
        if not (call.path + "/").startswith(self._folder):
            return
        if call.name == "fsync" and call.path not in self._files:
            self._sync_folder(call.path)
        elif call.name == "fsync":
            file = self._files[call.path]
            file.durable, file.pending, file.exists = _with(file.durable, file.pending), [], True
        elif call.name == "create":
            self._files.setdefault(call.path, _File())
        elif call.name in ("rename", "unlink"):
            self._moves.append(call)
            if call.name == "rename":
                self._files[call.target] = self._files.pop(call.path)
        else:
            file = self._files.setdefault(call.path, _File())
            offset = file.end if call.offset < 0 else call.offset
            file.pending.append(Call(call.name, call.path, call.data, offset))
            file.end = offset + len(call.data)

    def _sync_folder(self, folder: str) -> None:
        for call in [call for call in self._moves if str(Path(call.path).parent) == folder]:
            self._moves.remove(call)
            if call.name == "unlink":
                self._files.pop(call.path, None)
        for path, file in self._files.items():
            file.exists = file.exists or str(Path(path).parent) == folder

    def after_crash(self, rng: random.Random) -> dict[str, bytes]:
        """The files that one possible crash leaves, by path. Each draw is another crash."""
        unlinked = {call.path for call in self._moves if call.name == "unlink" and rng.random() < 0.5}
        left: dict[str, bytes] = {}
        for path, file in self._files.items():
            if path in unlinked or (not file.exists and rng.random() < 0.5):
                continue
            kept = [call for call in file.pending if rng.random() < 0.6]
            left[path] = _with(file.durable, [_torn(call, rng) for call in kept])
        return left


def _with(content: bytes, calls: list[Call]) -> bytes:
    made = bytearray(content)
    for call in calls:
        if call.name == "truncate":
            made = made[: call.offset] + bytes(max(0, call.offset - len(made)))
        else:
            made += bytes(max(0, call.offset - len(made)))
            made[call.offset : call.offset + len(call.data)] = call.data
    return bytes(made)


def _torn(call: Call, rng: random.Random) -> Call:
    """The call, or a part of its write: a disk writes sectors, and not all of them."""
    if call.name != "write" or rng.random() < 0.5:
        return call
    cut = rng.randrange(len(call.data) + 1)
    if len(call.data) > _SECTOR and rng.random() < 0.5:
        cut -= (call.offset + cut) % _SECTOR
    return Call(call.name, call.path, call.data[: max(0, cut)], call.offset)
