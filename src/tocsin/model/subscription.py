"""Backend subscriptions: a channel with one set of parameter values [BAD §3.1].

Values are checked against the channel's signature and converted to a canonical form, so that `{"radius_m": 5}` and
`{"radius_m": 5.0}` are the same subscription. Its id is a digest of channel and canonical values, so that every process
can compute it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import reduce
from operator import xor

from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.model.schema import Schema

Value = str | bool | int | float | None | list["Value"]
"""A canonical parameter value as JSON has it. Decimals, dates and timestamps are strings."""

_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_DECIMAL_DIGITS = 76
"""Precision of calculations: twice that of a DECIMAL, so that no value is rounded before it is checked."""
_MAX_TEXT = 4096
"""Characters in one parameter: enough for a name or token, too few to store documents."""


@dataclass(frozen=True, slots=True)
class BadParameter:
    """The reason why a parameter does not fit a channel's signature."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"parameter {self.name!r}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ForeignUser:
    """A bound parameter has another value than the name of the session's user."""

    name: str
    user: str

    def __str__(self) -> str:
        return f"parameter {self.name!r} must be {self.user!r}: a subscriber subscribes only for itself"


def bind_user(bound: Iterable[str], given: Mapping[str, object], user: str) -> dict[str, object] | ForeignUser:
    """Fill in the bound parameters that `given` omits. Any other value than `user` is refused."""
    values = dict(given)
    for name in bound:
        if values.setdefault(name, user) != user:
            return ForeignUser(name, user)
    return values


def canonical_values(parameters: Schema, given: Mapping[str, object]) -> tuple[Value, ...] | BadParameter:
    """The values in the order of the signature, or the first error. NULL is not accepted."""
    for name in given:
        if parameters.type_of(name) is None:
            names = ", ".join(parameters.names) or "none"
            return BadParameter(str(name), f"the channel has no such parameter (it has: {names})")
    values: list[Value] = []
    for column in parameters.columns:
        if column.name not in given:
            return BadParameter(column.name, f"missing, a value of type {column.type} is needed")
        try:
            values.append(canonical_value(column.type, given[column.name]))
        except ValueError as error:
            return BadParameter(column.name, str(error))
    return tuple(values)


def canonical_value(kind: str, value: object) -> Value:
    """Convert a value to the canonical type `kind`. Raises ValueError with the reason if it does not fit."""
    if kind.startswith("ARRAY<"):
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list for {kind}, got {_shown(value)}")
        return [canonical_value(kind[6:-1], element) for element in value]
    if kind == "STRING":
        return _text(value)
    if kind == "BOOLEAN":
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {_shown(value)}")
        return value
    if kind in _INTEGER_BITS:
        return _integer(kind, value)
    if kind in ("FLOAT", "DOUBLE"):
        return _floating(value)
    if kind.startswith("DECIMAL"):
        return _decimal(kind, value)
    if kind == "DATE":
        return _date(value)
    if kind == "TIMESTAMP":
        return _timestamp(value)
    raise ValueError(f"{kind} is not a parameter type")


def subscription_id(channel: ChannelName, values: tuple[Value, ...]) -> SubscriptionId:
    """The digest of channel and canonical values. Like Spark, it ignores the case of channel names."""
    text = json.dumps([channel.lower(), *values], ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return SubscriptionId(hashlib.blake2b(text.encode("utf-8"), digest_size=16, person=b"tocsin-be-sub").hexdigest())


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_shown(value)}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"longer than {_MAX_TEXT} characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode text (a lone surrogate)") from None
    return value


def _integer(kind: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number for {kind}, got {_shown(value)}")
    limit = 1 << (_INTEGER_BITS[kind] - 1)
    if not -limit <= value < limit:
        raise ValueError(f"{value} is outside the range of {kind}")
    return value


def _floating(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("too large for a DOUBLE") from None
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number + 0.0  # -0.0 becomes 0.0


def _decimal(kind: str, value: object) -> str:
    precision, scale = (int(part) for part in kind[8:-1].split(","))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number for {kind}, got {_shown(value)}")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"expected a number for {kind}, got {_shown(value)}") from None
    # `copy_abs`, since `abs` rounds to the 28 digits of Python's own context; a DECIMAL has up to 38.
    if not number.is_finite() or number.copy_abs() >= Decimal(1).scaleb(precision - scale):
        raise ValueError(f"{_shown(value)} does not fit {kind}")
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=_DECIMAL_DIGITS))
    if rounded != number:
        raise ValueError(f"{_shown(value)} has more than {scale} decimal places")
    return str(rounded if rounded else rounded.copy_abs())


def _date(value: object) -> str:
    try:
        return date.fromisoformat(_text(value)).isoformat()
    except ValueError:
        raise ValueError(f"expected a date such as 2026-11-15, got {_shown(value)}") from None


def _timestamp(value: object) -> str:
    try:
        moment = datetime.fromisoformat(_text(value))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"expected a time such as 2026-11-15T18:00:00Z, got {_shown(value)}") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def fingerprint(subscriptions: Iterable[SubscriptionId]) -> str:
    """A digest of a set of ids that does not depend on their order. Two processes compare it instead of their lists."""
    return f"{reduce(xor, (int(identity, 16) for identity in subscriptions), 0):032x}"
