"""Numbers of a trace: storage types, their bits, and the digests that an index keeps of them.

Digests are made in the order that the writer of traces makes them, so that they are the same to
the last bit.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_XXHASH = ctypes.CDLL("libxxhash.so.0")
_XXHASH.XXH3_64bits.restype = ctypes.c_uint64
_XXHASH.XXH3_64bits.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

# Storage type of the bits, and the exponent of the smallest normal number.
STORAGE = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32, "fp64": np.uint64,
           "int32": np.int32, "int64": np.int64, "uint8": np.uint8}
LEAST_EXPONENT = {"bf16": -126, "fp16": -14, "fp32": -126, "fp64": -1022}
BLOCK = 1024  # elements whose moments are summed before they are merged


def xxh3(data: bytes | np.ndarray) -> int:
    """xxh3-64 of bytes."""
    if isinstance(data, bytes):
        return _XXHASH.XXH3_64bits(data, len(data))
    data = np.ascontiguousarray(data)
    return _XXHASH.XXH3_64bits(data.ctypes.data, data.nbytes)


def values_of(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that the bits are, in fp64."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float64)
    if dtype == "fp32":
        return bits.view(np.float32).astype(np.float64)
    return bits.view(np.float64) if dtype == "fp64" else bits.astype(np.float64)


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded once to a storage type, to nearest, ties to even."""
    if dtype == "fp16":
        return values.astype(np.float16).view(np.uint16)
    if dtype == "fp32":
        return values.astype(np.float32).view(np.uint32)
    if dtype != "bf16":
        return values.astype(np.float64).view(np.uint64) if dtype == "fp64" \
            else values.astype(STORAGE[dtype])
    short = values.astype(np.float32)
    # Rounded to odd first: a number that fp32 rounds up to a tie of bf16 would be rounded twice.
    wide = short.view(np.uint32).copy()
    inexact = short.astype(np.float64) != values
    too_far = inexact & (np.abs(short.astype(np.float64)) > np.abs(values))
    wide[too_far] -= 1
    wide[inexact & np.isfinite(values)] |= 1
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.astype(np.uint16)


@dataclass
class Digest:
    """What the index keeps of a tensor; the names are those of its columns."""

    xxh3: int
    n: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    subnormal: int = 0
    min: float = 0.0
    max: float = 0.0
    absmax: float = 0.0
    absmax_at: int = -1
    mean: float = 0.0
    m2: float = 0.0
    rms: float = 0.0
    sum_abs: float = 0.0
    sum_squares: float = 0.0
    exponents: dict[int, int] = field(default_factory=dict)  # bin: how many elements


def digest_of_rows(row_xxh3: Sequence[int], n: int) -> Digest:
    """The digest of a cache: hashes alone."""
    none = float("nan")
    hashes = np.asarray(row_xxh3, np.uint64)
    return Digest(xxh3(hashes), n, -1, -1, -1, -1, -1, none, none, none, -1, none, none, none,
                  none, none)


def _in_order(terms: np.ndarray) -> float:
    return float(np.add.accumulate(terms)[-1])


def _merge_block(block: np.ndarray, before: int, tiny: float, digest: Digest) -> None:
    """Adds the finite elements of a block to moments and extremes."""
    low, high = float(block.min()), float(block.max())
    digest.min = low if before == 0 else min(digest.min, low)
    digest.max = high if before == 0 else max(digest.max, high)
    digest.zeros += int((block == 0).sum())
    digest.subnormal += int(((block != 0) & (np.abs(block) < tiny)).sum())
    digest.sum_abs = _in_order(np.concatenate([[digest.sum_abs], np.abs(block)]))
    digest.sum_squares = _in_order(np.concatenate([[digest.sum_squares], block * block]))
    mean = _in_order(block) / len(block)
    spread = block - mean
    delta, every = mean - digest.mean, before + len(block)
    digest.mean += delta * (len(block) / every)
    digest.m2 += _in_order(spread * spread) + delta * delta * (before * len(block) / every)


def digest_of(bits: np.ndarray, dtype: str) -> Digest:
    """The digest of a tensor, as the writer of traces makes it."""
    values = values_of(bits, dtype).ravel()
    digest = Digest(xxh3(bits), values.size)
    exponents = ((values.view(np.uint64) >> 52) & 0x7FF).astype(np.int64)
    bins, counts = np.unique(np.clip(exponents - 1023 + 127, 0, 255), return_counts=True)
    digest.exponents = dict(zip(bins.tolist(), counts.tolist(), strict=True))
    finite = np.isfinite(values)
    digest.nan = int(np.isnan(values).sum())
    digest.posinf, digest.neginf = int((values == np.inf).sum()), int((values == -np.inf).sum())
    if finite.any():
        magnitude = np.where(finite, np.abs(values), -1.0)
        digest.absmax_at = int(magnitude.argmax())
        digest.absmax = float(magnitude[digest.absmax_at])
    tiny = 2.0 ** LEAST_EXPONENT[dtype] if dtype in LEAST_EXPONENT else 0.0
    before = 0
    for begin in range(0, values.size, BLOCK):
        block = values[begin:begin + BLOCK]
        block = block[finite[begin:begin + BLOCK]]
        if block.size:
            _merge_block(block, before, tiny, digest)
            before += block.size
    digest.rms = float(np.sqrt(digest.sum_squares / before)) if before else 0.0
    return digest


def row_hashes_of(bits: np.ndarray) -> list[int]:
    """xxh3-64 of each row of the outermost axis."""
    return [xxh3(row) for row in np.ascontiguousarray(bits)]
