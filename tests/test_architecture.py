"""The import rules of docs/architecture.md, one test a rule. A failure lists every module that breaks the rule."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "tocsin"
TESTS = Path(__file__).parent

_CORES = {"model", "wire", "coords", "policies", "broker", "coordinator", "edge"}
_EVIDENCE = {"experiments", "benchmarks", "demo", "chaos"}
# Folder -> folders it may import; the longest matching entry counts. A folder may always import from itself.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "wire": {"model", "coords"},
    "coords": {"model"},
    "policies": {"model", "coords"},
    "database": {"wire"},
    "segments": set(),
    "leaders": {"wire"},
    "broker": {"model", "wire", "coords"},
    "coordinator": {"model", "wire", "policies", "coords"},
    "edge": {"model", "wire", "policies"},
    "cluster": {"model", "wire", "database", "segments"},
    "cluster/server": {"cluster", "leaders", "model", "wire", "database", "runtime/http"},
    "cluster/result_server": {"cluster", "leaders", "model", "wire", "database", "runtime/http"},
    "runtime/http": {"model", "wire", "leaders"},
    "runtime/broker": {"runtime/http", "leaders", "client", "segments", *_CORES},
    "runtime/coordinator": {"runtime/http", "leaders", "database", *_CORES},
    "runtime/edge": {"runtime/http", "database", "client", "segments", *_CORES},
    "runtime/stack": {"runtime/http", "runtime/coordinator", "model", "wire"},
    "sim": {"client", "cluster/sql", *_CORES},
    "client": {"model", "wire", "coords", "leaders"},
    "experiments": {"sim", *_CORES},
    "benchmarks": {"sim", "client", "runtime", "cluster", "demo", *_CORES},
    "demo": {"sim", "client", "leaders", "runtime", "cluster", "experiments", *_CORES},
    "chaos": {"client", "leaders", "runtime", *_CORES},
    "cli": {"sim", "client", "leaders", "runtime", "cluster", "web", *_CORES, *_EVIDENCE},
    "web": {"runtime/http", *_CORES},
}
# The logic without I/O: time, randomness and the outside world are arguments.
PURE = _CORES
OUTSIDE_WORLD = {
    "asyncio", "fastapi", "httpx", "http", "os", "pathlib", "pyspark", "random", "requests",
    "secrets", "socket", "sqlalchemy", "subprocess", "threading", "time", "urllib.request",
    "uuid", "uvicorn", "websockets",
}  # fmt: skip
# Experiments run as Spark jobs, and benchmarks measure Spark itself.
MAY_IMPORT_PYSPARK = ("cluster/spark", "experiments", "benchmarks")
# These modules put a process together from its folders, so they import downwards and upwards.
COMPOSITION_ROOTS = {"server.py", "main.py"}


def test_every_folder_has_a_rule() -> None:
    top_level = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert top_level == {folder.partition("/")[0] for folder in MAY_IMPORT}


def test_folder_imports_only_what_the_design_allows() -> None:
    wrong = []
    for path in _modules():
        rule = _rule_of(_folder(path))
        for line, imported in _own_imports(path):
            target = _folder(imported)
            allowed = rule is not None and any(_lies_in(target, folder) for folder in (rule, *MAY_IMPORT[rule]))
            if not (allowed or _name(path) == "__init__.py"):
                wrong.append(f"{_name(path)}:{line} imports {_name(imported)}")
    assert not wrong, "\n".join(wrong)


def test_pure_folders_see_no_clock_socket_or_global_randomness() -> None:
    wrong = [
        f"{_name(path)}:{line} imports {name}"
        for path in _modules()
        if _folder(path).partition("/")[0] in PURE
        for line, name in _imports(path)
        if any(name == outside or name.startswith(outside + ".") for outside in OUTSIDE_WORLD)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_spark_folder_and_the_evidence_import_pyspark() -> None:
    wrong = [
        f"{_name(path)}:{line}"
        for path in _modules()
        if not _folder(path).startswith(MAY_IMPORT_PYSPARK)
        for line, name in _imports(path)
        if name.split(".")[0] == "pyspark"
    ]
    assert not wrong, "\n".join(wrong)


def test_processes_of_broker_coordinator_and_edge_do_not_import_each_other() -> None:
    processes = {"runtime/broker", "runtime/coordinator", "runtime/edge"}
    wrong = [
        f"{_name(path)}:{line} imports {_name(imported)}"
        for path in _modules()
        for line, imported in _own_imports(path)
        if _process(path) != _process(imported) and {_process(path), _process(imported)} <= processes
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {path: {imported for _, imported in _own_imports(path)} - {path} for path in _modules()}
    assert _cycle({_name(path): {_name(target) for target in targets} for path, targets in graph.items()}) is None


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in _modules():
        if path.name not in COMPOSITION_ROOTS:
            graph[_folder(path)] |= {_folder(target) for _, target in _own_imports(path)} - {_folder(path)}
    assert _cycle(graph) is None


def test_tests_mirror_the_source_folder_by_folder() -> None:
    """Every folder of tests has its folder in the source, with three exceptions.

    `end_to_end` runs whole networks, `security` attacks them, `scripts` tests the scripts beside the source.
    """
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."}
    source = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert folders - source == {"end_to_end", "scripts", "security"}


def test_import_reader_sees_absolute_and_nested_imports() -> None:
    text = "import time\ndef f():\n    from tocsin.broker import core\n    import os.path as p\n"
    assert [name for _, name in _imports_in(ast.parse(text))] == [
        "time",
        "tocsin.broker",
        "tocsin.broker.core",
        "os.path",
    ]


def test_cycle_finder_sees_a_cycle() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
    assert _cycle({"a": {"b", "c"}, "b": {"c"}}) is None


@cache
def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    return list(_imports_in(ast.parse(path.read_text(encoding="utf-8"))))


def _imports_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that the tree imports, with its line. `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@cache
def _own_imports(path: Path) -> list[tuple[int, Path]]:
    """The modules of Tocsin that `path` imports; `from package import module` counts as the module alone."""
    found: dict[int, list[Path]] = defaultdict(list)
    for line, name in _imports(path):
        if name.startswith("tocsin."):
            target = SOURCE.joinpath(*name.split(".")[1:])
            found[line] += filter(Path.is_file, (target.with_suffix(".py"), target / "__init__.py"))
    return [
        (line, target)
        for line, targets in found.items()
        for target in targets
        if len(targets) == 1 or target.name != "__init__.py"
    ]


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _folder(path: Path) -> str:
    return path.parent.relative_to(SOURCE).as_posix()


def _process(path: Path) -> str:
    return "/".join(_folder(path).split("/")[:2])


def _lies_in(folder: str, parent: str) -> bool:
    return folder == parent or folder.startswith(parent + "/")


def _rule_of(folder: str) -> str | None:
    return max((rule for rule in MAY_IMPORT if _lies_in(folder, rule)), key=len, default=None)


def _cycle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None
