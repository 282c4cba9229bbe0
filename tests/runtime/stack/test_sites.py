"""Sites from TOML files: their processes, and the tokens that sites make for each other."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from tocsin.runtime.coordinator.neighbour_file import read_neighbours
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.stack.sites import Site, Sites
from tocsin.runtime.stack.stack import Stack
from tocsin.wire.errors import TocsinError

EXAMPLE = Path(__file__).parents[3] / "examples" / "warning-centres"
SITE = '[site]\nname = "{name}"\nroot = "{name}"\nedges = {edges}\n'
NEIGHBOUR = '[[neighbour]]\nsite = "{name}"\ncoordinator = "http://127.0.0.1:1"\ntoken_file = "keys/{name}.token"\n'


def written(folder: Path, name: str, *neighbours: str, edges: object = 1) -> Path:
    file = folder / f"{name}.toml"
    text = SITE.format(name=name, edges=edges) + "".join(NEIGHBOUR.format(name=other) for other in neighbours)
    file.write_text(text, encoding="utf-8")
    return file


def flags(stack: Stack, broker: str) -> list[str]:
    return stack.brokers[broker]._arguments


def test_site_has_a_head_and_edges_that_stand_by(tmp_path: Path) -> None:
    site = Site(written(tmp_path, "east", "west", edges=2))
    assert list(site.stack.brokers) == ["broker-1", "broker-2", "broker-3"]
    head, edge = flags(site.stack, "broker-1"), flags(site.stack, "broker-3")
    assert head[head.index("--role") + 1] == "head" and "--standby" not in head
    assert edge[edge.index("--role") + 1] == "edge" and "--standby" in edge
    arguments = site.stack.coordinator._arguments
    assert arguments[arguments.index("--site") + 1] == "east"
    assert arguments[arguments.index("--neighbours") + 1] == str(site.file)
    assert [child.name for child in site.stack.children] == ["broker-1", "broker-2", "broker-3", "coordinator"]


def test_sites_make_the_tokens_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(stack: Stack) -> None:
        pass

    monkeypatch.setattr(Stack, "start", start)
    files = [written(tmp_path, "east", "west", "far"), written(tmp_path, "west", "east")]
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "far.token").write_text("made-elsewhere", encoding="utf-8")
    sites = Sites(files)
    asyncio.run(sites.start())
    token_file = tmp_path / "keys" / "west.token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    west, far = read_neighbours(files[0], "east")
    assert far.token == "made-elsewhere"
    signer = Signer.load_or_create(sites.sites["west"].stack.coordinator_state / "signing-key.pem")
    claims = signer.verifier().claims(west.token, now_s=0.0)
    assert claims is not None and claims.scopes == {"site:east", "receive:#"}
    asyncio.run(Sites(files).start())
    assert read_neighbours(files[0], "east")[0] == west


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"expected a table \[site\] with the name of the site"),
        ("[site]\nname = 3\n", r"\[site\]: Expected `str`"),
        ('[site]\nname = "a b"\n', "the name of a site has 1 to 128 letters"),
        ('[site]\nname = "a"\nedges = -1\n', "edges: expected 0 to 100"),
        ('[site]\nname = "a"\nedge = 1\n', "edge"),
        ("[site\n", r"\[site\]"),
    ],
)
def test_invalid_file_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TocsinError, match=reason):
        Site(file)
    with pytest.raises(TocsinError, match="cannot read"):
        Site(tmp_path / "none.toml")


def test_two_files_of_one_site_are_refused(tmp_path: Path) -> None:
    one, two = written(tmp_path, "east"), tmp_path / "copy.toml"
    two.write_text(one.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(TocsinError, match="two files describe the site east"):
        Sites([one, two])


def test_links_of_the_warning_centres_have_two_ends_and_ports_differ() -> None:
    sites = {file.stem: Site(file) for file in EXAMPLE.glob("*.toml")}
    assert set(sites) == {"rtwc1", "ntwc1", "ntwc2", "loc1a", "loc2a"}
    for name, site in sites.items():
        assert site.table.name == name
        for neighbour in site.neighbours:
            other = sites[neighbour.site]
            assert neighbour.coordinator == other.stack.coordinator_url
            assert name in [entry.site for entry in other.neighbours]
    ports = [site.table.coordinator_port for site in sites.values()]
    ports += [site.table.broker_port + number for site in sites.values() for number in range(1 + site.table.edges)]
    assert len(ports) == len(set(ports))
