"""Reads a journal, the digests of a run, as traces/README.md lists its bytes."""
from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.digest import xxh3
from lockstep.errors import LockstepError, check, reading
from lockstep.rows import PassRows, Row

MAGIC, VERSION = b"lockstep journal", 1
MANIFEST, PASS, TENSOR = 1, 2, 3
HEAD = struct.Struct("<16sII")
RECORD = struct.Struct("<QII")
PASS_HEAD = struct.Struct("<iIIIIIIII")
PASS_ROW = struct.Struct("<iiiiq")
TENSOR_HEAD = struct.Struct("<QiBBBBBBHIII")
RUN = struct.Struct("<iii")
NUMBERS = struct.Struct("<7dq")
COUNTS = struct.Struct("<5q")
BEGINS_ANEW, INHERITS_KNOWN, TENSORS_KEPT = 1, 2, 4
HAS_NUMBERS, HAS_COUNTS = 1, 2
RUNS, OF_THE_PASS, OF_ITS_LOGITS = range(3)
CACHE = "attn.kv"


@dataclasses.dataclass
class Digest:
    """The statistics of a tensor: counts of all elements, numbers of the finite ones. Where none
    were kept, counts are -1 and numbers NaN.
    """

    xxh3: int
    n: int
    nan: int = -1
    posinf: int = -1
    neginf: int = -1
    zeros: int = -1
    subnormal: int = -1
    absmax_at: int = -1
    min: float = math.nan
    max: float = math.nan
    absmax: float = math.nan
    mean: float = math.nan
    m2: float = math.nan
    sum_abs: float = math.nan
    sum_squares: float = math.nan
    exponents: NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros(256, np.int64))

    @property
    def rms(self) -> float:
        if self.nan < 0:
            return math.nan
        finite = self.n - self.nan - self.posinf - self.neginf
        return math.sqrt(self.sum_squares / finite) if finite else 0.0


@dataclasses.dataclass
class JournalTensor:
    """The digest of a tensor, and whose rows it has."""

    seq: int
    number: int  # of its pass
    layer: int
    point: str
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]  # request and position of each row
    digest: Digest
    row_xxh3: NDArray[np.uint64]


@dataclasses.dataclass
class JournalPass:
    """A pass, and whether numbers of its tensors were kept, in a segment."""

    number: int
    kept: bool
    rows: PassRows
    tensors: list[JournalTensor]


class _Taking:
    """Takes values off the front of bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        values = form.unpack_from(self.data, self.at)
        self.at += form.size
        return values

    def array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self.data, kind, count, self.at)
        self.at += values.nbytes
        return values

    def text(self, size: int) -> str:
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode()

    def lists(self, count: int) -> dict[int, list[int]]:
        found = {}
        for _ in range(count):
            owner, size = self.take(struct.Struct("<iI"))
            found[owner] = self.array("<i4", size).tolist()
        return found


class Journal:
    """A journal: `manifest`, `passes`, and `problem`, why reading ended before the file did.

    A record that was cut or altered ends it there, and the pass that it is of is left out.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = pathlib.Path(path)
        self.manifest: dict[str, Any] = {}
        self.passes: list[JournalPass] = []
        self.problem = ""
        self._seq = 0
        self._caches: dict[tuple[str, int, int], NDArray[np.uint64]] = {}
        try:
            data = memoryview(bytearray(self.path.read_bytes()))
        except OSError as error:
            raise LockstepError(f"{path} cannot be read ({error.strerror}): a journal was wanted"
                                ) from error
        check(len(data) >= HEAD.size and data[:len(MAGIC)] == MAGIC,
              f"{path}: a journal was wanted, it does not begin as one")
        check(HEAD.unpack_from(data)[1] == VERSION, f"{path}: a journal of version {VERSION} was "
              f"wanted, found {HEAD.unpack_from(data)[1]}: read it with the version that wrote it")
        with reading(str(path)):
            self._read(data)
        check(self.manifest, f"{path}: {self.problem}")

    def _read(self, data: memoryview) -> None:
        at, before, missing, tensors = HEAD.size, 0, 0, []
        rows = JournalPass(0, False, PassRows([], []), [])
        while at < len(data) and not self.manifest.get("complete"):
            if len(data) - at < RECORD.size:
                break
            checksum, size, kind = RECORD.unpack_from(data, at)
            end = at + RECORD.size + size
            if end > len(data):
                break
            struct.pack_into("<Q", data, at, before)
            if xxh3(data[at:end]) != checksum or (kind == TENSOR) != (missing > 0):
                break
            record, before, at = _Taking(data[at + RECORD.size:end]), checksum, end
            if kind == MANIFEST:
                self.manifest = json.loads(bytes(record.data))
            elif kind == PASS:
                tensors = []
                rows, missing = self._pass(record)
            else:
                missing -= 1
                tensors.append(self._tensor(record, rows))
            if kind != MANIFEST and missing == 0:
                rows.tensors = tensors
                self.passes.append(rows)
        if not self.manifest.get("complete") and (at < len(data) or missing):
            self.problem = f"it was cut or damaged at byte {at}, and what follows is lost"

    def _pass(self, record: _Taking) -> tuple[JournalPass, int]:
        number, flags, tensors, rows, logit_rows, tables, inherited, _, _ = record.take(PASS_HEAD)
        if flags & BEGINS_ANEW:
            self._caches = {}
        found = [Row(request, position, token, bool(phase)) for request, position, token, phase, _
                 in (record.take(PASS_ROW) for _ in range(rows))]
        logits = record.array("<i4", logit_rows).tolist()
        record.lists(tables)
        return JournalPass(number, bool(flags & TENSORS_KEPT),
                           PassRows(found, logits, record.lists(inherited)), []), tensors

    def _tensor(self, record: _Taking, of: JournalPass) -> JournalTensor:
        (whole, layer, flags, rows_are, point_bytes, dtype_bytes, axes, width, bins, runs, same,
         hashes) = record.take(TENSOR_HEAD)
        point, dtype = record.text(point_bytes), record.text(dtype_bytes)
        shape = tuple(record.array("<i8", axes).tolist())
        rows = tuple((request, first + i) for request, first, count in
                     (record.take(RUN) for _ in range(runs)) for i in range(count))
        if rows_are != RUNS:
            owners = of.rows.rows if rows_are == OF_THE_PASS else of.rows.with_logits()
            rows = tuple((row.request, row.position) for row in owners)
        digest = Digest(whole, int(np.prod(shape)))
        if flags & HAS_NUMBERS:
            (digest.min, digest.max, digest.absmax, digest.mean, digest.m2, digest.sum_abs,
             digest.sum_squares, digest.absmax_at) = record.take(NUMBERS)
            (digest.nan, digest.posinf, digest.neginf, digest.zeros, digest.subnormal
             ) = record.take(COUNTS) if flags & HAS_COUNTS else (0, 0, 0, 0, 0)
        occupied = record.array("u1", bins)
        digest.exponents[occupied] = record.array(f"<u{width}", bins)
        fresh = record.array("<u8", hashes)
        if point == CACHE and rows:
            place = (point, layer, rows[0][0])
            fresh = np.concatenate([self._caches.get(place, fresh[:0])[:same], fresh])
            self._caches[place] = fresh
        self._seq += 1
        return JournalTensor(self._seq - 1, of.number, layer, point, dtype, shape, rows, digest,
                             fresh)
