"""Colours that everybody can read and tell apart, computed from the style sheet; what the page's files may not do."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLES
from tocsin.policies.balance.settings import NONE, PlacementPolicy
from tocsin.web import PAGES

Colour = tuple[float, float, float]
_PAIR = re.compile(r"--([a-z0-9-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\);")
THEMES = ("light", "dark")
BROKERS = [f"b{number}" for number in range(8)]
TEXT = [
    ("ink", "surface"), ("ink", "bg"), ("ink", "raised"), ("ink", "map"), ("muted", "surface"), ("muted", "raised"),
    ("muted", "map"), ("accent", "surface"), ("on-accent", "accent"), ("warn", "surface"), ("warn", "raised"),
    ("warn", "map"), ("bad", "surface"), ("bad", "bad-soft"), ("bad", "raised"), ("good", "surface"),
    ("ink", "warn-soft"),
]  # fmt: skip
SHAPES = [("edge", "surface"), ("alarm", "map"), ("shelter", "map"), ("nobody", "map"), ("accent", "map")]
# Full dichromacy, linear RGB (Machado, Oliveira and Fernandes 2009).
SEEN_BY = {
    "everybody": np.eye(3),
    "protanopes": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopes": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopes": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


_TO_LMS = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.21190350, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.62997870]]
)
_TO_LAB = np.array(
    [
        [0.21045426, 0.79361779, -0.00407205],
        [1.97799850, -2.42859221, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
)


def theme(name: str) -> dict[str, np.ndarray]:
    """The style sheet's colours as linear RGB."""
    found = _PAIR.findall((PAGES / "theme.css").read_text(encoding="utf-8"))
    return {variable: _linear((light, dark)[THEMES.index(name)]) for variable, light, dark in found}


def _linear(text: str) -> np.ndarray:
    values = np.array([int(text[n : n + 2], 16) for n in (0, 2, 4)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """As WCAG defines it."""
    bright, dark = sorted((float(colour @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def oklab(colour: np.ndarray) -> np.ndarray:
    """Björn Ottosson's: distances in it are about as large as they look."""
    return np.asarray(_TO_LAB @ np.cbrt(_TO_LMS @ np.clip(colour, 0, 1)))


@pytest.mark.parametrize("name", THEMES)
def test_text_has_the_contrast_that_aa_asks_for(name: str) -> None:
    colours = theme(name)
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in TEXT}
    assert all(value >= 4.5 for value in low.values()), {pair: value for pair, value in low.items() if value < 4.5}


@pytest.mark.parametrize("name", THEMES)
def test_shapes_and_brokers_stand_out_from_what_is_behind_them(name: str) -> None:
    colours = theme(name)
    pairs = [*SHAPES, *((broker, "map") for broker in BROKERS)]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert all(value >= 3.0 for value in low.values()), {pair: value for pair, value in low.items() if value < 3.0}


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_any_two_brokers_are_told_apart_by_everybody(name: str, eyes: str) -> None:
    colours = theme(name)
    seen = {broker: oklab(SEEN_BY[eyes] @ colours[broker]) for broker in BROKERS}
    near = {
        pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in itertools.combinations(BROKERS, 2)
    }  # fmt: skip
    assert min(near.values()) > 0.095, min(near.items(), key=lambda item: item[1])


def test_every_colour_that_is_used_is_declared() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES.iterdir() if path.suffix in (".css", ".js"))
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", texts))
    declared = set(re.findall(r"--([a-z0-9-]+):", texts))
    assert used <= declared


def test_no_file_makes_markup_of_data_or_names_another_host() -> None:
    for path in PAGES.iterdir():
        text = path.read_text(encoding="utf-8")
        code = re.sub(r"//.*", "", text) if path.suffix == ".js" else text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code), path.name
        hosts = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, (path.name, hosts)
        if path.suffix == ".html":
            assert "style=" not in text and "onclick" not in text  # the policy would refuse them


def test_the_page_offers_the_policies_that_there_are() -> None:
    text = (PAGES / "controls_view.js").read_text(encoding="utf-8")
    offered = {
        name: re.findall(r'"([a-z-]+)"', values) for name, values in re.findall(r"const ([A-Z]+) = \[([^\]]*)\]", text)
    }
    assert set(offered["PLACEMENTS"]) == {str(one) for one in PlacementPolicy}
    assert set(offered["SCHEMES"]) == {*MIGRATIONS, NONE}
    assert set(offered["SHUFFLES"]) == {*SHUFFLES, NONE}
