"""Parses untrusted XML into a small tree: elements with namespace, text and line.

It uses expat and refuses a DOCTYPE, so there are no entities to expand and nothing external to fetch. Size, depth and
number of elements are limited before they cost memory. Attributes are dropped: CAP has none. Not a general XML reader:
`reading.py` calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn
from xml.parsers import expat

MAX_ALERT_BYTES: Final = 1 << 20
"""The largest alert. Public alerts have a few kilobytes; those with long polygons have a few hundred."""
MAX_ELEMENTS: Final = 20_000
MAX_DEPTH: Final = 32
"""The deepest nesting of elements. CAP needs 4; a signature inside needs some more."""
_SEPARATOR = " "
"""Expat puts it between namespace and name: a URI contains no blank."""


@dataclass(frozen=True, slots=True)
class XmlProblem:
    line: int | None
    reason: str


@dataclass(slots=True)
class Element:
    namespace: str
    name: str
    line: int
    text: str = ""
    """All text directly inside, stripped."""
    children: list[Element] = field(default_factory=list)


class _XmlRefused(Exception):
    """Stops the parser. `read_tree` always catches it."""


class _Builder:
    def __init__(self, parser: expat.XMLParserType) -> None:
        self._parser = parser
        self._open: list[Element] = []
        self._pieces: list[list[str]] = []
        self._elements = 0
        self.root: Element | None = None

    def start(self, qualified: str, _attributes: object) -> None:
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            raise _XmlRefused(f"more than {MAX_ELEMENTS:,} elements")
        if len(self._open) == MAX_DEPTH:
            raise _XmlRefused(f"elements inside each other more than {MAX_DEPTH} deep")
        namespace, _, name = qualified.rpartition(_SEPARATOR)
        element = Element(namespace, name, self._parser.CurrentLineNumber)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._pieces.append([])

    def end(self, _qualified: str) -> None:
        self._open.pop().text = "".join(self._pieces.pop()).strip()

    def characters(self, text: str) -> None:
        self._pieces[-1].append(text)

    def doctype(self, *_declared: object) -> NoReturn:
        raise _XmlRefused("a DOCTYPE is not read here: send the alert without it and without entities of its own")


def read_tree(body: bytes) -> Element | XmlProblem:
    """The root element of a document, or the reason why it cannot be read and the line."""
    if len(body) > MAX_ALERT_BYTES:
        return XmlProblem(None, f"at most {MAX_ALERT_BYTES:,} bytes in one alert; this has {len(body):,}")
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    builder = _Builder(parser)
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    # A DOCTYPE comes before everything that it can declare. The other two handlers are a second line of defence.
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.doctype
    parser.ExternalEntityRefHandler = builder.doctype
    try:
        # In one piece: before 2.6, expat takes quadratic time for a long token that arrives in many pieces.
        parser.Parse(body, True)
    except _XmlRefused as refusal:
        return XmlProblem(parser.CurrentLineNumber, str(refusal))
    except expat.ExpatError as error:
        return XmlProblem(error.lineno, f"not XML: {expat.ErrorString(error.code)}")
    except (LookupError, ValueError) as error:  # an encoding that Python does not know or that is not byte-based
        return XmlProblem(1, f"not XML in an encoding that is read here ({error}); send UTF-8")
    assert builder.root is not None
    return builder.root
