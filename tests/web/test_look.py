"""Contrast and difference of the style sheet's colours, and rules for the page's files."""

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
    ("ink", "surface"),
    ("ink", "bg"),
    ("ink", "raised"),
    ("ink", "map"),
    ("muted", "surface"),
    ("muted", "raised"),
    ("muted", "map"),
    ("accent", "surface"),
    ("on-accent", "accent"),
    ("warn", "surface"),
    ("warn", "raised"),
    ("warn", "map"),
    ("bad", "surface"),
    ("bad", "bad-soft"),
    ("bad", "raised"),
    ("good", "surface"),
    ("ink", "warn-soft"),
]
SHAPES = [("edge", "surface"), ("alarm", "map"), ("shelter", "map"), ("no-broker", "map"), ("accent", "map")]
# Full dichromacy, linear RGB (Machado, Oliveira and Fernandes 2009).
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
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
    pairs = _PAIR.findall((PAGES / "theme.css").read_text(encoding="utf-8"))
    return {variable: _linear((light, dark)[THEMES.index(name)]) for variable, light, dark in pairs}


def _linear(text: str) -> np.ndarray:
    values = np.array([int(text[n : n + 2], 16) for n in (0, 2, 4)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(first: np.ndarray, second: np.ndarray) -> float:
    """The contrast ratio of WCAG."""
    bright, dark = sorted((float(colour @ [0.2126, 0.7152, 0.0722]) for colour in (first, second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def oklab(colour: np.ndarray) -> np.ndarray:
    """Björn Ottosson's colour space, in which distances match perceived differences."""
    return np.asarray(_TO_LAB @ np.cbrt(_TO_LMS @ np.clip(colour, 0, 1)))


@pytest.mark.parametrize("name", THEMES)
def test_text_has_the_contrast_of_wcag_aa(name: str) -> None:
    colours = theme(name)
    contrasts = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in TEXT}
    assert all(value >= 4.5 for value in contrasts.values()), {
        pair: value for pair, value in contrasts.items() if value < 4.5
    }


@pytest.mark.parametrize("name", THEMES)
def test_shapes_and_brokers_contrast_with_their_background(name: str) -> None:
    colours = theme(name)
    pairs = [*SHAPES, *((broker, "map") for broker in BROKERS)]
    contrasts = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert all(value >= 3.0 for value in contrasts.values()), {
        pair: value for pair, value in contrasts.items() if value < 3.0
    }


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_any_two_brokers_differ_for_every_vision(name: str, vision: str) -> None:
    colours = theme(name)
    perceived = {broker: oklab(VISION[vision] @ colours[broker]) for broker in BROKERS}
    pairs = itertools.combinations(BROKERS, 2)
    distances = {pair: float(np.linalg.norm(perceived[pair[0]] - perceived[pair[1]])) for pair in pairs}
    assert min(distances.values()) > 0.095, min(distances.items(), key=lambda item: item[1])


def test_every_used_colour_is_declared() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES.iterdir() if path.suffix in (".css", ".js"))
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", texts))
    declared = set(re.findall(r"--([a-z0-9-]+):", texts))
    assert used <= declared


def test_no_file_creates_markup_from_data_or_names_another_host() -> None:
    for path in PAGES.iterdir():
        text = path.read_text(encoding="utf-8")
        code = re.sub(r"//.*", "", text) if path.suffix == ".js" else text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code), path.name
        hosts = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, (path.name, hosts)
        if path.suffix == ".html":
            assert "style=" not in text and "onclick" not in text  # the content security policy refuses them


def test_page_offers_exactly_the_existing_policies() -> None:
    text = (PAGES / "controls_view.js").read_text(encoding="utf-8")
    offered = {
        name: re.findall(r'"([a-z-]+)"', values) for name, values in re.findall(r"const ([A-Z]+) = \[([^\]]*)\]", text)
    }
    assert set(offered["PLACEMENTS"]) == {str(placement) for placement in PlacementPolicy}
    assert set(offered["SCHEMES"]) == {*MIGRATIONS, NONE}
    assert set(offered["SHUFFLES"]) == {*SHUFFLES, NONE}
