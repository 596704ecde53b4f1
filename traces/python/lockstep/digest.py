"""Digests: hashes, counts and moments of many tensors at once, as traces/README.md defines them."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lockstep.elements import TINY, Elements, widened

COUNTS = ("nan", "posinf", "neginf", "zeros", "subnormal", "absmax_at")
NUMBERS = ("min", "max", "absmax", "mean", "m2", "rms", "sum_abs", "sum_squares")
BINS = 256
BLOCK = 1 << 18  # elements that are looked at together, so that they stay in a cache
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
        return float(np.sqrt(self.sum_squares / self.finite)) if self.finite else 0.0


def xxh3(raw: Any) -> int:
    """xxh3-64 of bytes."""
    return xxhash.xxh3_64_intdigest(raw)


def row_hashes(bits: NDArray[Any]) -> list[int]:
    """A hash of the bytes of each row of a contiguous array."""
    rows = bits.shape[0]
    if not rows or not bits.size:
        return [xxh3(b"")] * rows
    raw, size = bits.data.cast("B"), bits.nbytes // rows
    if rows == 1:
        return [xxh3(raw)]
    return [xxh3(raw[at:at + size]) for at in range(0, bits.nbytes, size)]


def digest_of_rows(hashes: NDArray[np.uint64], count: int) -> Digest:
    """The digest of a cache of `count` elements, which is known by the hashes of its rows alone."""
    none = float("nan")
    whole = xxh3(hashes.astype("<u8").tobytes())
    return Digest(whole, count, -1, -1, -1, -1, -1, -1, none, none, none, none, none, none, none)


def digests_of(tensors: Sequence[Elements]) -> list[Digest]:
    """The digest of each tensor. Small ones are looked at together: a call costs more than they."""
    digests = [Digest(xxh3(t.bits.data), t.bits.size) for t in tensors]
    large = {i for i, t in enumerate(tensors) if t.bits.itemsize == 2 and t.bits.size >= PATTERNS}
    for i in large:
        _count_patterns(tensors[i], digests[i])
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        members = [i for i, t in enumerate(tensors)
                   if t.dtype == dtype and t.bits.size and i not in large]
        for group in _groups(members, tensors):
            flat = [tensors[i].bits.reshape(-1) for i, _ in group]
            parts = [bits[at:at + BLOCK] for bits, (_, at) in zip(flat, group)]
            _add_parts(parts, dtype, [(digests[i], at) for i, at in group])
    return digests


def _count_patterns(tensor: Elements, digest: Digest) -> None:
    """The statistics of a tensor of 16 bits, of how often each of their patterns is there."""
    raw = tensor.bits.reshape(-1).view(np.uint16)
    counts = sum(np.bincount(raw[at:at + BLOCK], minlength=PATTERNS)
                 for at in range(0, len(raw), BLOCK))
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


def _groups(members: Iterable[int], tensors: Sequence[Elements]) -> Iterable[list[tuple[int, int]]]:
    """Parts of tensors (number, first element) of about BLOCK elements together."""
    group: list[tuple[int, int]] = []
    size = 0
    for i in members:
        for at in range(0, tensors[i].bits.size, BLOCK):
            part = min(BLOCK, tensors[i].bits.size - at)
            if group and size + part > BLOCK:
                yield group
                group, size = [], 0
            group.append((i, at))
            size += part
    if group:
        yield group


def _add_parts(parts: list[NDArray[Any]], dtype: str, owners: list[tuple[Digest, int]]) -> None:
    """Adds what is in each part to the digest that it is of."""
    lengths = np.array([len(part) for part in parts])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    values = widened(np.concatenate(parts), dtype)
    sizes = np.abs(values)
    bins = (values.view(np.uint32) >> 23) & (BINS - 1)
    owner = np.repeat(np.arange(len(parts)), lengths)
    exponents = np.bincount(owner * BINS + bins, minlength=len(parts) * BINS).reshape(-1, BINS)
    counts = {"zeros": values == 0, "subnormal": (sizes < np.float32(TINY[dtype])) & (values != 0)}
    finite = lengths
    wide = values.astype(np.float64)
    if exponents[:, BINS - 1].any():  # where the exponent is the largest, it is no number
        counts |= {"nan": np.isnan(values), "posinf": values == np.inf, "neginf": values == -np.inf}
        bad = bins == BINS - 1
        finite = lengths - np.add.reduceat(bad, starts, dtype=np.int64)
        low = np.where(bad, np.float32(np.inf), values)
        high = np.where(bad, -np.float32(np.inf), values)
        sizes = np.where(bad, np.float32(-1), sizes)
        wide[bad] = 0.0
    else:
        bad, low, high = slice(0, 0), values, values
    sums = {name: np.add.reduceat(flags, starts, dtype=np.int64) for name, flags in counts.items()}
    mean = np.add.reduceat(wide, starts) / np.maximum(finite, 1)
    off = wide - np.repeat(mean, lengths)
    off[bad] = 0.0
    moments = {"mean": mean, "m2": np.add.reduceat(off * off, starts),
               "sum_abs": np.add.reduceat(np.abs(wide), starts),
               "sum_squares": np.add.reduceat(wide * wide, starts),
               "min": np.minimum.reduceat(low, starts), "max": np.maximum.reduceat(high, starts)}
    absmax = np.maximum.reduceat(sizes, starts)
    hits = np.flatnonzero(sizes == np.repeat(absmax, lengths))
    first = hits[np.searchsorted(hits, starts)] - starts
    for i, (digest, at) in enumerate(owners):
        _merge(digest, int(finite[i]), {name: float(column[i]) for name, column in moments.items()},
               float(absmax[i]), at + int(first[i]))
        for name, column in sums.items():
            setattr(digest, name, getattr(digest, name) + int(column[i]))
        digest.exponents = exponents[i] if at == 0 else digest.exponents + exponents[i]


def _merge(digest: Digest, finite: int, part: dict[str, float], absmax: float, at: int) -> None:
    """Takes `finite` more elements in, of which these are the moments."""
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
    if absmax > digest.absmax or digest.absmax_at < 0:
        digest.absmax, digest.absmax_at = absmax, at
    digest.finite = both
