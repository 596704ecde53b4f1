"""Digests: hashes, counts and moments of many tensors at once, as traces/README.md defines them."""
from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lockstep.elements import TINY, Elements, widened

COUNTS = ("nan", "posinf", "neginf", "zeros", "subnormal", "absmax_at")
NUMBERS = ("min", "max", "absmax", "mean", "m2", "rms", "sum_abs", "sum_squares")
STATISTICS = ("xxh3", "n", *COUNTS, *NUMBERS)
BINS = 256
BLOCK = 1 << 16  # elements that are looked at together, so that they stay in a cache
PATTERNS = 1 << 16  # of 16 bits: a tensor of more elements is known by how many there are of each

Parts = dict[str, NDArray[Any]]  # statistics, with an entry for each of some parts of tensors


def xxh3(raw: Any) -> int:
    """xxh3-64 of bytes."""
    return xxhash.xxh3_64_intdigest(raw)


def row_hashes(bits: NDArray[Any]) -> list[int]:
    """A hash of the bytes of each row of a contiguous array."""
    rows = bits.shape[0]
    if not rows or not bits.size:
        return [xxh3(b"")] * rows
    raw, size, one = bits.data.cast("B"), bits.nbytes // rows, xxhash.xxh3_64_intdigest
    if rows == 1:
        return [one(raw)]
    return [one(row) for row, in struct.iter_unpack(f"{size}s", raw)]


class Digests:
    """The statistics of tensors, a column each: counts of all elements, numbers of the finite ones.

    They are those of tensors without an element until something is put in.
    """

    def __init__(self, count: int) -> None:
        self.columns: Parts = {name: np.zeros(count, np.float64) for name in NUMBERS}
        self.columns |= {name: np.zeros(count, np.int64) for name in ("n", *COUNTS)}
        self.columns |= {"xxh3": np.zeros(count, np.uint64)}
        self.columns["absmax_at"][:] = -1
        self.exponents: NDArray[np.int32] = np.zeros((count, BINS), np.int32)

    def put_hashes(self, at: int, hashes: NDArray[np.uint64], count: int) -> None:
        """A cache of `count` elements, which is known by the hashes of its rows alone."""
        for name in (*COUNTS, *NUMBERS):
            self.columns[name][at] = -1 if name in COUNTS else math.nan
        self.columns["n"][at] = count
        self.columns["xxh3"][at] = xxh3(hashes.astype("<u8").tobytes())

    def put(self, places: Sequence[int], tensors: Sequence[Elements]) -> None:
        """Tensors, each once."""
        self.put_parts([(np.array([at]), bits.reshape(1, -1), dtype)
                        for at, (bits, dtype) in zip(places, tensors)])

    def put_parts(self, parts: Sequence[tuple[NDArray[np.int64], NDArray[Any], str]]) -> None:
        """Places, bits [tensor, element] and dtype of tensors, each once. Those of one size are
        looked at together: a call costs more than a small tensor.
        """
        alike: dict[tuple[str, int], list[tuple[NDArray[np.int64], NDArray[Any]]]] = {}
        for where, bits, dtype in parts:
            size = bits.shape[1]
            self.columns["xxh3"][where] = row_hashes(bits)
            self.columns["n"][where] = size
            if 0 < size <= BLOCK:
                count = BLOCK // size
                alike.setdefault((dtype, size), []).extend(
                    (where[i:i + count], bits[i:i + count]) for i in range(0, len(bits), count))
            elif size:
                put = self._put_patterns if bits.itemsize == 2 else self._put_blocks
                for at, row in zip(where, bits):
                    put(int(at), row, dtype)
        for (dtype, size), some in alike.items():
            for few in _as_many_as(BLOCK // size, some):
                self._set(np.concatenate([where for where, _ in few]),
                          *_parts_of(np.concatenate([bits for _, bits in few]), dtype))
        self._set_rms(np.concatenate([where for where, _, _ in parts]) if parts else
                      np.zeros(0, np.int64))

    def _set(self, places: NDArray[np.int64], parts: Parts, exponents: NDArray[np.int64]) -> None:
        for name, column in parts.items():
            self.columns[name][places] = column
        self.exponents[places] = exponents

    def _set_rms(self, places: NDArray[np.int64]) -> None:
        n, nan, high, low, squares = (
            self.columns[name][places] for name in ("n", "nan", "posinf", "neginf", "sum_squares"))
        self.columns["rms"][places] = np.sqrt(squares / np.maximum(n - nan - high - low, 1))

    def _put_blocks(self, at: int, bits: NDArray[Any], dtype: str) -> None:
        """A tensor that is too large to be looked at as one."""
        many = [(begin, *_parts_of(bits[None, begin:begin + BLOCK], dtype))
                for begin in range(0, len(bits), BLOCK)]
        self.exponents[at] = sum(exponents[0] for _, _, exponents in many)
        none = np.zeros(1, np.int64)
        part = {name: np.concatenate([parts.get(name, none) for _, parts, _ in many])
                for name in STATISTICS if name not in ("xxh3", "n", "rms")}
        for name in COUNTS[:-1]:
            self.columns[name][at] = part[name].sum()
        begins = np.array([begin for begin, _, _ in many])
        sizes = np.diff(begins, append=len(bits)) - [exponents[0, -1] for _, _, exponents in many]
        part = {name: column[sizes > 0] for name, column in part.items()}
        begins, sizes = begins[sizes > 0], sizes[sizes > 0]
        if not len(sizes):
            return
        mean = float((part["mean"] * sizes).sum() / sizes.sum())
        largest = int(part["absmax"].argmax())
        found = {"min": part["min"].min(), "max": part["max"].max(), "mean": mean,
                 "m2": (part["m2"] + sizes * (part["mean"] - mean) ** 2).sum(),
                 "absmax": part["absmax"][largest],
                 "absmax_at": begins[largest] + part["absmax_at"][largest]}
        found |= {name: part[name].sum() for name in ("sum_abs", "sum_squares")}
        for name, value in found.items():
            self.columns[name][at] = value

    def _put_patterns(self, at: int, bits: NDArray[Any], dtype: str) -> None:
        """A tensor of 16 bits, by how often each of their patterns is there."""
        raw = bits.view(np.uint16)
        counts = np.zeros(PATTERNS, np.int64)
        for begin in range(0, len(raw), 4 * PATTERNS):
            counts += np.bincount(raw[begin:begin + 4 * PATTERNS], minlength=PATTERNS)
        patterns = np.flatnonzero(counts).astype(np.uint16)
        often = counts[patterns]
        values = widened(patterns if dtype == "bf16" else patterns.view(np.float16), dtype)
        bins = (values.view(np.uint32) >> 23) & (BINS - 1)
        self.exponents[at] = np.bincount(bins, weights=often, minlength=BINS)
        found = {name: often[flags].sum() for name, flags in {
            "nan": np.isnan(values), "posinf": values == np.inf, "neginf": values == -np.inf,
            "zeros": values == 0,
            "subnormal": (np.abs(values) < np.float32(TINY[dtype])) & (values != 0)}.items()}
        good = np.isfinite(values)
        if good.any():
            wide, often = values[good].astype(np.float64), often[good]
            sizes = np.abs(wide)
            found |= {"mean": (often * wide).sum() / often.sum(), "sum_abs": (often * sizes).sum(),
                      "sum_squares": (often * wide * wide).sum(), "min": wide.min(),
                      "max": wide.max(), "absmax": sizes.max()}
            found["m2"] = (often * (wide - found["mean"]) ** 2).sum()
            found["absmax_at"] = _first_of(raw, patterns[good][sizes.argmax()] & 0x7FFF)
        for name, value in found.items():
            self.columns[name][at] = value


def _as_many_as(count: int, parts: Sequence[tuple[NDArray[np.int64], NDArray[Any]]]
                ) -> Iterator[list[tuple[NDArray[np.int64], NDArray[Any]]]]:
    """Parts in lists of so many tensors at most."""
    some: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    size = 0
    for part in parts:
        if some and size + len(part[0]) > count:
            yield some
            some, size = [], 0
        some.append(part)
        size += len(part[0])
    if some:
        yield some


def _first_of(raw: NDArray[np.uint16], pattern: int) -> int:
    """The first element that has this pattern, with either sign."""
    for at in range(0, len(raw), BLOCK):
        here = (raw[at:at + BLOCK] & 0x7FFF) == pattern
        if here.any():
            return at + int(here.argmax())
    return -1


def _parts_of(bits: NDArray[Any], dtype: str) -> tuple[Parts, NDArray[np.int64]]:
    """The statistics of each row of [part, element], and how many elements have each biased
    exponent."""
    count, length = bits.shape
    values = widened(bits, dtype)
    exponents = _exponents_of(values)
    counts = _zeros_of(values, exponents, dtype)
    sizes, wide = np.abs(values), values.astype(np.float64)
    bad = None
    if exponents[:, -1].any():  # where the exponent is the largest, it is no number
        bad = ~np.isfinite(values)
        counts |= {"nan": np.isnan(values).sum(axis=1), "posinf": (values == np.inf).sum(axis=1),
                   "neginf": (values == -np.inf).sum(axis=1)}
        wide[bad] = 0.0
        sizes[bad] = -1
    first = sizes.argmax(axis=1)
    parts = counts | {
        "absmax_at": first, "absmax": sizes[np.arange(count), first],
        "min": (values if bad is None else np.where(bad, np.inf, values)).min(axis=1),
        "max": (values if bad is None else np.where(bad, -np.inf, values)).max(axis=1),
        "mean": wide.sum(axis=1) / np.maximum(length - exponents[:, -1], 1),
        "sum_squares": np.einsum("ij,ij->i", wide, wide), "sum_abs": np.abs(wide).sum(axis=1)}
    if bad is not None:
        none = exponents[:, -1] == length
        for name in ("absmax", "min", "max"):
            parts[name][none] = 0
        parts["absmax_at"][none] = -1
    parts["m2"] = _spread_of(wide, bad, length - exponents[:, -1], parts)
    return parts, exponents


def _spread_of(wide: NDArray[np.float64], bad: NDArray[np.bool_] | None,
               counts: NDArray[np.int64], parts: Parts) -> NDArray[np.float64]:
    """The sum of squared distances from the mean, of each row."""
    spread: NDArray[np.float64] = parts["sum_squares"] - counts * parts["mean"] ** 2
    # Where the mean is most of the elements, the difference has lost what it is of.
    near = np.flatnonzero(spread < 1e-3 * parts["sum_squares"])
    if len(near):
        rest = wide[near] - parts["mean"][near, None]
        if bad is not None:
            rest[bad[near]] = 0.0
        spread[near] = np.einsum("ij,ij->i", rest, rest)
    return spread


def _exponents_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Of each row, how many elements have each biased exponent."""
    parts = len(values)
    bins = (values.view(np.uint32) >> 23) & (BINS - 1)
    numbered = bins + np.arange(0, parts * BINS, BINS)[:, None]
    return np.bincount(numbered.reshape(-1), minlength=parts * BINS).reshape(parts, BINS)


def _zeros_of(values: NDArray[np.float32], exponents: NDArray[np.int64], dtype: str
              ) -> dict[str, NDArray[Any]]:
    """Of each row, how many elements are 0, and how many less than normal ones of the dtype."""
    none: NDArray[np.int64] = exponents[:, 0]  # zeros, and what fp32 has below its normal numbers
    if not none.any():
        zeros = none
    else:
        zeros = (values == 0).sum(axis=1)
    least = max(1, math.frexp(TINY[dtype])[1] + 126)  # the bin of the least normal number
    return {"zeros": zeros, "subnormal": none - zeros + exponents[:, 1:least].sum(axis=1)}
