"""The dependency column of docs/design.md, enforced: who may import whom, and who may see clocks, sockets and Spark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tocsin"

# part -> parts it may import. A part may always import itself.
_LOGIC = {"model", "wire", "coords", "policies", "broker", "coordinator", "edge", "cluster"}
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "wire": {"model"},
    "coords": {"model"},
    "policies": {"model", "coords"},
    "broker": {"model", "wire"},
    "coordinator": {"model", "wire", "policies", "coords"},
    "edge": {"model", "wire", "policies"},
    "cluster": {"model", "wire"},
    "runtime": _LOGIC,
    "sim": _LOGIC,
    "experiments": {"sim", "policies", "model", "coords", "edge"},
    "client": {"model", "wire"},
    "cli": {"runtime", "sim", "client", "experiments", "web"} | _LOGIC,
    "web": {"runtime", "sim", "client", "experiments"} | _LOGIC,
}
# Folders of pure logic: time, randomness and the outside world are handed to them.
PURE = {"model", "wire", "coords", "policies", "broker", "coordinator", "edge"}
OUTSIDE_WORLD = {
    "asyncio", "fastapi", "httpx", "http", "os", "pathlib", "pyspark", "random", "requests",
    "secrets", "socket", "sqlalchemy", "subprocess", "threading", "time", "urllib.request",
    "uuid", "uvicorn", "websockets",
}  # fmt: skip
# The one door to Spark inside the data cluster; experiments fan out over it, benchmarks measure it.
MAY_SEE_SPARK = ("cluster/spark", "experiments", "cli/bench")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute module name that `path` imports, with the line; relative imports are made absolute."""
    package = ("tocsin", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            yield node.lineno, name
            yield from ((node.lineno, f"{name}.{alias.name}") for alias in node.names)


def test_every_part_of_the_design_has_its_folder() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_part_imports_only_what_the_design_allows(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    allowed = MAY_IMPORT[part] | {part}
    wrong = [
        f"{path.name}:{line} imports {name}"
        for line, name in imports(path)
        if name.startswith("tocsin.") and name.split(".")[1] not in allowed
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_parts_see_no_clock_no_socket_and_no_global_randomness(path: Path) -> None:
    if part_of(path) not in PURE:
        return
    wrong = [
        f"{path.name}:{line} imports {name}"
        for line, name in imports(path)
        if any(name == outside or name.startswith(outside + ".") for outside in OUTSIDE_WORLD)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_spark_folder_imports_pyspark(path: Path) -> None:
    if str(path.relative_to(SOURCE)).startswith(MAY_SEE_SPARK):
        return
    wrong = [f"{path.name}:{line}" for line, name in imports(path) if name.split(".")[0] == "pyspark"]
    assert not wrong, wrong


def test_the_test_itself_sees_forbidden_imports(tmp_path: Path) -> None:
    """A guard that cannot fail guards nothing: feed it a relative and an absolute import and see both."""
    folder = SOURCE / "policies"
    tree = ast.parse("import time\nfrom ..runtime import clock\nfrom tocsin.broker import core\n")
    sample = tmp_path / "sample.py"
    sample.write_text(ast.unparse(tree), encoding="utf-8")
    found = {name for _, name in _imports_as(sample, folder)}
    assert {"time", "tocsin.runtime", "tocsin.broker"} <= found


def _imports_as(path: Path, folder: Path) -> list[tuple[int, str]]:
    """Imports of `path` read as if it lay in `folder`."""
    copy = folder / "_architecture_sample.py"
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    try:
        return list(imports(copy))
    finally:
        copy.unlink()
