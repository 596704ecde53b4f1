"""Digests: hashes, counts and moments of many tensors at once, as traces/README.md defines them."""
from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lockstep.elements import TINY, Elements, widened

COUNTS = ("nan", "posinf", "neginf", "zeros", "subnormal", "absmax_at")
NUMBERS = ("min", "max", "absmax", "mean", "m2", "rms", "sum_abs", "sum_squares")
STATISTICS = ("xxh3", *COUNTS, *NUMBERS)
BINS = 256
BLOCK = 1 << 16  # elements that are looked at together, so that they stay in a cache
NO_EXPONENTS: NDArray[np.int64] = np.zeros(BINS, np.int64)
NO_EXPONENTS.flags.writeable = False
PATTERNS = 1 << 16  # of 16 bits: a tensor of more elements is known by how many there are of each


@dataclasses.dataclass
class Digest:
    """The statistics of a tensor: counts of all elements, numbers of the finite ones."""

    xxh3: int
    n: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    subnormal: int = 0
    absmax_at: int = -1
    min: float = 0.0
    max: float = 0.0
    absmax: float = 0.0
    mean: float = 0.0
    m2: float = 0.0
    sum_abs: float = 0.0
    sum_squares: float = 0.0
    exponents: NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: NO_EXPONENTS)
    finite: int = 0  # how many elements the numbers are of

    @property
    def rms(self) -> float:
        if self.nan < 0:
            return float("nan")
        return math.sqrt(self.sum_squares / self.finite) if self.finite else 0.0

    def numbers(self) -> tuple[float, ...]:
        """In the order of STATISTICS."""
        return _STATISTICS_OF(self)


_STATISTICS_OF = operator.attrgetter(*STATISTICS)


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


def digest_of_rows(hashes: NDArray[np.uint64], count: int) -> Digest:
    """The digest of a cache of `count` elements, which is known by the hashes of its rows alone."""
    none = float("nan")
    whole = xxh3(hashes.astype("<u8").tobytes())
    return Digest(whole, count, -1, -1, -1, -1, -1, -1, none, none, none, none, none, none, none)


def digests_of(tensors: Sequence[Elements]) -> list[Digest]:
    """The digest of each tensor. Those of one size are looked at together: a call costs more than a
    small tensor.
    """
    digests = [Digest(xxh3(t.bits.data), t.bits.size) for t in tensors]
    alike: dict[tuple[str, int], list[tuple[int, int]]] = {}  # tensor and first element of parts
    for i, tensor in enumerate(tensors):
        size = tensor.bits.size
        if tensor.bits.itemsize == 2 and size >= PATTERNS:
            _count_patterns(tensor, digests[i])
            continue
        for at in range(0, size, BLOCK):
            alike.setdefault((tensor.dtype, min(BLOCK, size - at)), []).append((i, at))
    for (dtype, size), parts in alike.items():
        count = max(1, BLOCK // size)
        for some in (parts[first:first + count] for first in range(0, len(parts), count)):
            bits = np.stack([tensors[i].bits.reshape(-1)[at:at + size] for i, at in some])
            _add_parts(bits, dtype, [(digests[i], at) for i, at in some])
    return digests


def _count_patterns(tensor: Elements, digest: Digest) -> None:
    """The statistics of a tensor of 16 bits, of how often each of their patterns is there."""
    raw = tensor.bits.reshape(-1).view(np.uint16)
    counts = np.zeros(PATTERNS, np.int64)
    for at in range(0, len(raw), 4 * PATTERNS):
        counts += np.bincount(raw[at:at + 4 * PATTERNS], minlength=PATTERNS)
    found = np.flatnonzero(counts)
    often, patterns = counts[found], found.astype(np.uint16)
    values = widened(patterns if tensor.dtype == "bf16" else patterns.view(np.float16),
                     tensor.dtype)
    bins = (values.view(np.uint32) >> 23) & (BINS - 1)
    digest.exponents = np.bincount(bins, weights=often, minlength=BINS).astype(np.int64)
    for name, flags in {"nan": np.isnan(values), "posinf": values == np.inf,
                        "neginf": values == -np.inf, "zeros": values == 0,
                        "subnormal": (np.abs(values) < np.float32(TINY[tensor.dtype])) &
                                     (values != 0)}.items():
        setattr(digest, name, int(often[flags].sum()))
    good = np.isfinite(values)
    digest.finite = int(often[good].sum())
    if not digest.finite:
        return
    wide, often = values[good].astype(np.float64), often[good]
    digest.mean = float((often * wide).sum() / digest.finite)
    digest.m2 = float((often * (wide - digest.mean) ** 2).sum())
    digest.sum_abs = float((often * np.abs(wide)).sum())
    digest.sum_squares = float((often * wide * wide).sum())
    digest.min, digest.max, digest.absmax = (
        float(wide.min()), float(wide.max()), float(np.abs(wide).max()))
    largest = patterns[good][np.argmax(np.abs(wide))] & 0x7FFF  # with either sign
    for at in range(0, len(raw), BLOCK):
        here = (raw[at:at + BLOCK] & 0x7FFF) == largest
        if here.any():
            digest.absmax_at = at + int(here.argmax())
            return


def _add_parts(bits: NDArray[Any], dtype: str, owners: list[tuple[Digest, int]]) -> None:
    """Adds each row of [part, element] to the digest that it is of, from an element on."""
    parts, length = bits.shape
    values = widened(bits, dtype)
    exponents = _exponents_of(values)
    counts, finite = _zeros_of(values, exponents, dtype), np.full(parts, length)
    sizes, low, high, wide = np.abs(values), values, values, values.astype(np.float64)
    bad = None
    if exponents[:, -1].any():  # where the exponent is the largest, it is no number
        bad = ~np.isfinite(values)
        counts |= {"nan": np.isnan(values).sum(axis=1), "posinf": (values == np.inf).sum(axis=1),
                   "neginf": (values == -np.inf).sum(axis=1)}
        finite = length - exponents[:, -1]
        low, high = (np.where(bad, np.float32(none), values) for none in (np.inf, -np.inf))
        sizes = np.where(bad, np.float32(-1), sizes)
        wide[bad] = 0.0
    first = sizes.argmax(axis=1)
    absmax = sizes[np.arange(parts), first]
    moments = {"min": low.min(axis=1), "max": high.max(axis=1),
               "mean": wide.sum(axis=1) / np.maximum(finite, 1),
               "sum_squares": np.einsum("ij,ij->i", wide, wide),
               "sum_abs": np.abs(wide).sum(axis=1)}
    wide -= moments["mean"][:, None]
    if bad is not None:
        wide[bad] = 0.0
    moments["m2"] = np.einsum("ij,ij->i", wide, wide)
    columns = {name: column.tolist() for name, column in (moments | counts).items()}
    for i, (digest, at) in enumerate(owners):
        part = {name: column[i] for name, column in columns.items()}
        part["absmax"], part["absmax_at"] = float(absmax[i]), at + int(first[i])
        if finite[i] == digest.n:  # it is all of the tensor
            digest.__dict__.update(part, finite=digest.n, exponents=exponents[i])
        else:
            _merge(digest, int(finite[i]), part)
            digest.exponents = digest.exponents + exponents[i]


def _exponents_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Of each row, how many elements have each biased exponent."""
    parts = len(values)
    bins = (values.view(np.uint32) >> 23) & (BINS - 1)
    numbered = bins + np.arange(0, parts * BINS, BINS)[:, None]
    return np.bincount(numbered.reshape(-1), minlength=parts * BINS).reshape(parts, BINS)


def _zeros_of(values: NDArray[np.float32], exponents: NDArray[np.int64], dtype: str
              ) -> dict[str, NDArray[np.int64]]:
    """Of each row, how many elements are 0, and how many less than normal ones of the dtype."""
    none: NDArray[np.int64] = exponents[:, 0]  # zeros, and what fp32 has below its normal numbers
    if not none.any():
        zeros = none
    else:
        zeros = (values == 0).sum(axis=1)
    least = max(1, math.frexp(TINY[dtype])[1] + 126)  # the bin of the least normal number
    return {"zeros": zeros, "subnormal": none - zeros + exponents[:, 1:least].sum(axis=1)}


def _merge(digest: Digest, finite: int, part: dict[str, Any]) -> None:
    """Takes `finite` more numbers in, and what is none, of which these are the statistics."""
    for name in COUNTS[:-1]:
        setattr(digest, name, getattr(digest, name) + part.get(name, 0))
    if finite == 0:
        return
    before = digest.finite
    both, apart = before + finite, part["mean"] - digest.mean
    digest.m2 += part["m2"] + apart * apart * before * finite / both
    digest.mean += apart * finite / both
    digest.sum_abs += part["sum_abs"]
    digest.sum_squares += part["sum_squares"]
    digest.min = min(digest.min, part["min"]) if before else part["min"]
    digest.max = max(digest.max, part["max"]) if before else part["max"]
    if part["absmax"] > digest.absmax or digest.absmax_at < 0:
        digest.absmax, digest.absmax_at = part["absmax"], part["absmax_at"]
    digest.finite = both
