"""Columns and their types, with Spark SQL's names. Datasets and channel parameters use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

SCALARS = frozenset(
    {"STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"}
)
_SYNONYMS = {
    "VARCHAR": "STRING",
    "TEXT": "STRING",
    "BOOL": "BOOLEAN",
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL(10,0)",
    "NUMERIC": "DECIMAL(10,0)",
    "DECIMAL": "DECIMAL(10,0)",
}
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\((\d+)(?:,(\d+))?\)")
_ARRAY = re.compile(r"ARRAY<(.+)>")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")


def is_name(text: str) -> bool:
    """Whether `text` may name a dataset, channel, feed, column or parameter. A name is safe in SQL, paths and URLs.

    A leading underscore is reserved for Tocsin's own columns.
    """
    return _NAME.fullmatch(text) is not None


def canonical_type(text: str) -> str | None:
    """The canonical spelling of a type (`long` → `BIGINT`); None if the type is not supported."""
    squeezed = re.sub(r"\s+", "", text).upper()
    if squeezed in SCALARS:
        return squeezed
    if squeezed in _SYNONYMS:
        return _SYNONYMS[squeezed]
    if match := _DECIMAL.fullmatch(squeezed):
        precision, scale = int(match[1]), int(match[2] or 0)
        return f"DECIMAL({precision},{scale})" if 1 <= precision <= 38 and scale <= precision else None
    if match := _ARRAY.fullmatch(squeezed):
        element = canonical_type(match[1])
        return None if element is None else f"ARRAY<{element}>"
    return None


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """The canonical spelling of the type: see `canonical_type`."""


@dataclass(frozen=True, slots=True)
class Schema:
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, **types: str) -> Self:
        """`Schema.of(kind="STRING", severity="INT")`; raises ValueError for an unsupported type."""
        columns = []
        for name, text in types.items():
            canonical = canonical_type(text)
            if canonical is None:
                raise ValueError(f"{text!r} is not a column type")
            columns.append(Column(name, canonical))
        return cls(tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def type_of(self, name: str) -> str | None:
        return next((column.type for column in self.columns if column.name == name), None)

    def ddl(self) -> str:
        """The columns as Spark's DDL: `kind STRING, severity INT`. `is_name` has validated the names."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)
