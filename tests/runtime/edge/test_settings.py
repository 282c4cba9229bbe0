"""The file of a node: what it declares, and which mistakes it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.model.edge import Usage
from tocsin.runtime.edge.settings import load_node_file
from tocsin.wire.errors import TocsinError

LEAF = """
[node]
name = "leaf-3"
parent = "district-1"
root = "http://127.0.0.1:8900"
port = 8907
data = "data/leaf-3"
memory_bytes = 64_000_000
cpu_share = 0.5
uplink_bytes_per_s = 200_000
streams = ["Readings"]
period_s = 5

[rules]
upper = 70
lower = 50
target = 60

[[source]]
name = "meters"
stream = "Readings"
kind = "file"
location = "meters.parquet"
options = { speed = 60, at_end = "close" }
"""


def load(folder: Path, text: str) -> None:
    file = folder / "node.toml"
    file.write_text(text)
    load_node_file(file)


def test_file_of_a_leaf_is_read_with_all_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "leaf.toml"
    file.write_text(LEAF)
    loaded = load_node_file(file)
    assert (loaded.node.name, loaded.node.parent, loaded.node.streams) == ("leaf-3", "district-1", ("Readings",))
    assert loaded.data == tmp_path / "data" / "leaf-3"
    assert (loaded.rules.thresholds.lower_pct, loaded.rules.thresholds.target_pct) == (50, 60)
    assert loaded.rules.load_pct(Usage(10, 80, 30)) == 80, "the scarcest resource decides"
    assert loaded.sources[0].options == {"speed": 60, "at_end": "close"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("port = 8907", "prot = 8907"), "there is no setting prot"),
        (('parent = "district-1"', ""), "parent and root go together"),
        (('name = "leaf-3"', 'name = "leaf 3"'), "name: expected"),
        (("cpu_share = 0.5", "cpu_share = 0"), "cpu_share: expected more than 0"),
        (("target = 60", "target = 65"), "target is the mean of lower and upper, 60"),
        (("lower = 50", "lower = 80"), "lower <= upper"),
        (('kind = "file"', 'kind = "socket"'), "kind is file or topic"),
        (('kind = "file"', 'kind = "topic"'), "options need the name of a topic"),
        (("speed = 60", "batch_rows = 0"), "batch_rows from 1 on"),
        (("port = 8907", 'port = 8907\nhost = "0.0.0.0"\ninsecure = true'), "needs the secret of the tree"),
        (("port = 8907", 'port = 8907\nhost = "0.0.0.0"'), "set tls_cert"),
        (("port = 8907", 'port = 8907\ntoken_file = "missing"'), "cannot read missing"),
        (("[rules]", "[rule]"), "unknown field"),
        (("[rules]", '[sink]\ngateway = "http://127.0.0.1:1"\n[rules]'), "only the root has a sink"),
        (("[node]", "[node"), "toml"),
    ],
)
def test_mistake_in_the_file_is_reported(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    with pytest.raises(TocsinError, match=reason):
        load(tmp_path, LEAF.replace(*change))
