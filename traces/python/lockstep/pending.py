"""What a writer was shown and has not written yet, with what the index will say of it."""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.blocks import Block, objects
from lockstep.digest import Digests, row_hashes
from lockstep.elements import Elements
from lockstep.points import AXES
from lockstep.rows import Run

NO_HASHES: NDArray[np.uint64] = np.zeros(0, np.uint64)


class Entry(NamedTuple):
    """A tensor of the index. A cache has hashes, a shape and a dtype even without its tensor."""

    number: int  # of its pass
    layer: int
    point: str
    tensor: Elements | None
    runs: Sequence[Run]
    hashes: NDArray[np.uint64] = NO_HASHES
    cache_shape: tuple[int, ...] = ()
    cache_dtype: str = ""
    digest_only: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.bits.shape if self.tensor else self.cache_shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype if self.tensor else self.cache_dtype

    @property
    def path(self) -> str:
        """Where it lies in the file; "": its digest alone is kept."""
        if self.tensor is None or self.digest_only:
            return ""
        path = _folder_of(self.number, self.layer) + self.point
        return f"{path}.request{self.runs[0][0]:06d}" if self.point == "attn.kv" else path


@functools.lru_cache(maxsize=1024)
def _folder_of(number: int, layer: int) -> str:
    part = "model" if layer < 0 else f"layer{layer:03d}"
    return f"/tensors/pass{number:06d}/{part}/"


class Pending:
    """Tensors in the order in which they were computed, which is that of the numbers they come
    with: their places among all that are pending."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.blocks: list[Block] = []
        self.count = self.nbytes = 0
        self._entries_at: list[int] = []
        self._blocks_at: list[NDArray[np.int64]] = []

    def put(self, at: int, entry: Entry) -> None:
        self.entries.append(entry)
        self._entries_at.append(at)
        self.count += 1
        if entry.tensor is not None:
            self.nbytes += entry.tensor.nbytes

    def put_block(self, first: int, block: Block) -> None:
        self.blocks.append(block)
        self._blocks_at.append(first + block.layout.at)
        self.count += len(block.layout.members)
        self.nbytes += block.nbytes

    @functools.cached_property
    def _places(self) -> NDArray[np.int64]:
        at = np.concatenate([np.array(self._entries_at, np.int64), *self._blocks_at])
        found = np.empty(len(at), np.int64)
        found[np.argsort(at, kind="stable")] = np.arange(len(at))
        return found

    def placed_entries(self) -> Iterator[tuple[int, Entry]]:
        """Each with its place."""
        return zip(self._places.tolist(), self.entries)

    def placed_blocks(self) -> Iterator[tuple[NDArray[np.int64], Block]]:
        """Each with the places of its tensors."""
        begin = len(self.entries)
        for block in self.blocks:
            end = begin + len(block.layout.members)
            yield self._places[begin:end], block
            begin = end

    def digests(self) -> Digests:
        made, parts = Digests(self.count), []
        for at, entry in self.placed_entries():
            if entry.point == "attn.kv":
                made.put_hashes(at, entry.hashes, math.prod(entry.shape))
            elif entry.tensor:
                parts.append((np.array([at]), entry.tensor.bits.reshape(1, -1), entry.dtype))
        for places, block in self.placed_blocks():
            first = 0
            for part in block.parts:
                parts.append((places[first:first + len(part)], part, block.layout.dtype))
                first += len(part)
        made.put_parts(parts)
        return made

    def facts(self) -> Facts:
        """What the index says of each but for its digest."""
        made = Facts(self.count)
        for at, entry in self.placed_entries():
            made.put(at, entry)
        for places, block in self.placed_blocks():
            made.put_block(places, block)
        return made

    def hashes(self, digests: Digests) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """How many rows each has, and the hashes of all of them."""
        counts = np.zeros(self.count, np.int64)
        whole = digests.columns["xxh3"]
        for at, entry in self.placed_entries():
            counts[at] = len(entry.hashes) if entry.point == "attn.kv" else entry.shape[0]
        for places, block in self.placed_blocks():
            counts[places] = block.layout.rows
        begins = np.cumsum(counts) - counts
        made = np.zeros(int(counts.sum()), np.uint64)
        made[begins[counts == 1]] = whole[counts == 1]  # a row that is all of its tensor
        for at, entry in self.placed_entries():
            end = begins[at] + counts[at]
            if entry.point == "attn.kv":
                made[begins[at]:end] = entry.hashes
            elif counts[at] > 1 and entry.tensor:
                made[begins[at]:end] = row_hashes(entry.tensor.bits)
        for places, block in self.placed_blocks():
            _put_rows(made, begins[places], block)
        return counts, made


def _put_rows(made: NDArray[np.uint64], begins: NDArray[np.int64], block: Block) -> None:
    """The hash of each row of the tensors that have several."""
    first = 0
    for part in block.parts:
        end, rows = first + len(part), block.layout.rows[first:first + len(part)]
        for count in set(rows.tolist()) - {0, 1}:
            some = np.flatnonzero(rows == count)
            marks = row_hashes(part[some].reshape(len(some) * count, -1))
            made[begins[first + some][:, None] + np.arange(count)] = \
                np.array(marks, np.uint64).reshape(len(some), count)
        first = end


class Facts:
    """Columns of the index, an entry for each tensor."""

    def __init__(self, count: int) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            name: np.empty(count, object) for name in ("point", "path", "dtype", "axes")}
        self.columns |= {name: np.zeros(count, np.int64) for name in ("pass", "layer")}
        self.shapes, self.runs = np.empty(count, object), np.empty(count, object)

    def put(self, at: int, entry: Entry) -> None:
        for name, value in (("point", entry.point), ("path", entry.path), ("dtype", entry.dtype),
                            ("axes", AXES[entry.point]), ("pass", entry.number),
                            ("layer", entry.layer)):
            self.columns[name][at] = value
        self.shapes[at], self.runs[at] = entry.shape, entry.runs

    def put_block(self, places: NDArray[np.int64], block: Block) -> None:
        layout = block.layout
        for name, values in (("point", layout.points), ("path", objects(block.paths())),
                             ("dtype", layout.dtype), ("axes", layout.axes),
                             ("pass", block.number), ("layer", layout.layers)):
            self.columns[name][places] = values
        self.shapes[places] = layout.shapes
        self.runs[places] = objects([block.runs])[0:1].repeat(len(places))
