"""`approx_count_distinct(x)`: HyperLogLog++ with 512 registers, equal to Spark's to the last bit.

A sketch is a set of rows (register, rank): the register is chosen by the first nine bits of a value's hash, the rank is
the position of the first one in the other bits, and the largest rank of a register counts. So sketches merge as MAX
does, per window, key and register, and small sets cost few rows. Source: S. Heule, M. Nunkesser and A. Hall,
"HyperLogLog in Practice" (2013). Spark's choices: relative error 0.05, hence 512 registers; xxHash64 with seed 42 over
the bytes of the value; linear counting up to 400; bias from the six nearest of the measured estimates.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tocsin.edge.operators.sketch_bias import BIASES, RAW_ESTIMATES

_BITS: Final = 9
REGISTERS: Final = 1 << _BITS
_SEED: Final = 42
_LINEAR_UP_TO: Final = 400.0
_NEIGHBOURS: Final = 6
_ALPHA_M2: Final = (0.7213 / (1.0 + 1.079 / REGISTERS)) * REGISTERS * REGISTERS
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]


def ranks(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The register and the rank of each value. The values must not contain nulls."""
    hashes = _hashes(values)
    registers = (hashes >> np.uint64(64 - _BITS)).astype(np.int32)
    rest = (hashes << np.uint64(_BITS)) | np.uint64(1 << (_BITS - 1))
    return pa.array(registers), pa.array((_leading_zeros(rest) + 1).astype(np.int8))


def estimates(groups: Any, ranks: Any, count: int) -> pa.Array:
    """The estimate of each group from the ranks of its registers; `groups` has the group's number for each rank."""
    empty = REGISTERS - np.bincount(groups, minlength=count)
    inverse = empty + np.bincount(groups, np.ldexp(1.0, -ranks.astype(np.int32)), count)
    return pa.array([_estimate(float(v), float(z)) for v, z in zip(empty, inverse, strict=True)], pa.int64())


def _estimate(empty: float, inverse: float) -> int:
    if empty > 0:
        linear = REGISTERS * float(np.log(REGISTERS / empty))
        if linear <= _LINEAR_UP_TO or _ALPHA_M2 / inverse <= 2.5 * REGISTERS:
            return int(np.floor(linear + 0.5))
    raw = _ALPHA_M2 / inverse
    return int(np.floor((raw - _bias(raw) if raw < 5.0 * REGISTERS else raw) + 0.5))


def _bias(raw: float) -> float:
    """The mean bias of the measured estimates that are nearest to this one."""
    low = max(bisect_left(RAW_ESTIMATES, raw) - _NEIGHBOURS + 1, 0)
    high = min(low + _NEIGHBOURS, len(RAW_ESTIMATES))
    while high < len(RAW_ESTIMATES) and (raw - RAW_ESTIMATES[high]) ** 2 < (raw - RAW_ESTIMATES[low]) ** 2:
        low, high = low + 1, high + 1
    total = 0.0
    for bias in BIASES[low:high]:  # one after the other, as Spark does: `sum` compensates rounding
        total += bias
    return total / (high - low)


def _leading_zeros(words: Hashes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of words that are not zero."""
    halves = words >> np.uint64(32)
    is_high = halves > 0
    # A double holds 32 bits exactly, so its exponent is the position of the highest one.
    exponents = np.frexp(np.where(is_high, halves, words & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    zeros: np.ndarray[tuple[int], np.dtype[np.int64]] = np.where(is_high, 32, 64) - exponents
    return zeros


def _hashes(values: pa.Array) -> Hashes:
    """xxHash64 of each value, over the bytes that Spark hashes."""
    type_ = values.type
    if not len(values):  # all values of a batch may be null
        return np.empty(0, np.uint64)
    if pa.types.is_string(type_):
        encoded = values.dictionary_encode()
        of_values: Hashes = _hashes_of_text(encoded.dictionary)[encoded.indices.to_numpy()]
        return of_values
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        values = values.cast(pa.timestamp("us", type_.tz)).cast(pa.int64()) if pa.types.is_timestamp(type_) else values
        values = values.cast(pa.int32()) if pa.types.is_date(type_) else values
    numbers = values.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(type_):
        numbers = np.where(np.isnan(numbers), np.nan, numbers + 0).astype(numbers.dtype)  # one NaN, one zero
    elif numbers.dtype != np.int64:
        numbers = numbers.astype(np.int32)
    return _xxhash64(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1))


def _hashes_of_text(texts: pa.Array) -> Hashes:
    """Texts of one length are hashed together."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    hashes = np.empty(len(texts), np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _xxhash64(data[offsets[rows, None] + np.arange(length)])
    return hashes


def _xxhash64(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> Hashes:
    """xxHash64 of each row of bytes, as its public specification describes it."""
    count, length = rows.shape
    seed = np.uint64(_SEED)
    position = 0
    with np.errstate(over="ignore"):
        hashes: Hashes = np.full(count, seed + _P5)
        if length >= 32:
            lanes = [np.full(count, start) for start in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
            while position + 32 <= length:
                lanes = [
                    _rotated(lane + _word(rows, position + 8 * number, 8) * _P2, 31) * _P1
                    for number, lane in enumerate(lanes)
                ]
                position += 32
            rotated = [_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
            hashes = rotated[0] + rotated[1] + rotated[2] + rotated[3]
            for lane in lanes:
                hashes = (hashes ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
        hashes = hashes + np.uint64(length)
        while position + 8 <= length:
            hashes = _rotated(hashes ^ (_rotated(_word(rows, position, 8) * _P2, 31) * _P1), 27) * _P1 + _P4
            position += 8
        if position + 4 <= length:
            hashes = _rotated(hashes ^ (_word(rows, position, 4) * _P1), 23) * _P2 + _P3
            position += 4
        for byte in range(position, length):
            hashes = _rotated(hashes ^ (rows[:, byte].astype(np.uint64) * _P5), 11) * _P1
        hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _word(rows: np.ndarray[Any, np.dtype[np.uint8]], at: int, size: int) -> Hashes:
    words: Hashes = np.ascontiguousarray(rows[:, at : at + size]).view(f"<u{size}").reshape(-1).astype(np.uint64)
    return words


def _rotated(words: Hashes, by: int) -> Hashes:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
