"""Where a query calls `near` and `distance_m`: names, arguments and their places. Found in the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.cluster.sql.tokens import Token, TokenKind

SIGNATURES = {
    "NEAR": ("lat1", "lon1", "lat2", "lon2", "radius_m"),
    "DISTANCE_M": ("lat1", "lon1", "lat2", "lon2"),
}


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int

    def holds(self, offset: int) -> bool:
        return self.start <= offset < self.end


@dataclass(frozen=True, slots=True)
class GeoCall:
    name: str
    """`NEAR` or `DISTANCE_M`."""
    span: Span
    """From the name to the closing parenthesis."""
    arguments: tuple[Span, ...]


def find_geo_calls(tokens: Sequence[Token]) -> tuple[GeoCall, ...]:
    """In the order of the text, nested ones after those around them. A call that never closes is not one."""
    calls = []
    for index, token in enumerate(tokens[:-1]):
        qualified = index > 0 and tokens[index - 1].is_symbol(".")
        if (
            token.kind is TokenKind.WORD
            and token.upper in SIGNATURES
            and not qualified
            and tokens[index + 1].is_symbol("(")
        ):
            closing = closing_parenthesis(tokens, index + 1)
            if closing is not None:
                span = Span(token.start, tokens[closing].end)
                calls.append(GeoCall(token.upper, span, _arguments(tokens, index + 1, closing)))
    return tuple(calls)


def closing_parenthesis(tokens: Sequence[Token], opening: int) -> int | None:
    """The index of the token that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].is_symbol("("):
            depth += 1
        elif tokens[index].is_symbol(")"):
            depth -= 1
            if depth == 0:
                return index
    return None


def _arguments(tokens: Sequence[Token], opening: int, closing: int) -> tuple[Span, ...]:
    spans, depth, first = [], 0, opening + 1
    for index in range(opening + 1, closing + 1):
        token = tokens[index]
        if token.kind is TokenKind.SYMBOL and token.text in "([":
            depth += 1
        elif (token.is_symbol(",") and depth == 0) or index == closing:
            if index > first:
                spans.append(Span(tokens[first].start, tokens[index - 1].end))
            first = index + 1
        elif token.kind is TokenKind.SYMBOL and token.text in ")]":
            depth -= 1
    return tuple(spans)
