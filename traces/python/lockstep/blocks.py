"""Tensors that a pass shows together: hashed, looked at and written as one piece of memory."""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.elements import STORAGE, Elements
from lockstep.points import AXES
from lockstep.rows import Run

ROOM_BYTES = 16 << 20  # that a tensor is copied to before there are enough of them


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """What a tensor is of, and how its rows are."""

    layer: int
    point: str
    dtype: str                # "": no tensor of a block, which is shown beside it
    row: tuple[int, ...] = ()

    @functools.cached_property
    def row_bytes(self) -> int:
        return math.prod(self.row) * STORAGE[self.dtype].itemsize


NOTHING = Place(-1, "", "")


class Member(NamedTuple):
    """A tensor of a block."""

    place: Place
    at: int                  # when it was computed, among all that the pass showed with it
    begin: int               # its first byte, and that behind its last
    end: int
    shape: tuple[int, ...]   # the row first

    @property
    def folder(self) -> str:
        return "model" if self.place.layer < 0 else f"layer{self.place.layer:03d}"


class Group(NamedTuple):
    """The members of a layer: they lie in one group of the file."""

    name: str
    kind: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype and shape of each
    members: NDArray[np.int64]


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """An array of these, whatever they are; numpy would look into tuples."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


class Layout:
    """Which tensors are in a block, and where. A step of decode has the same ones each time, so
    that what can be known of them is found once."""

    def __init__(self, places: Sequence[Place], sizes: Sequence[int]) -> None:
        self.members: list[Member] = []
        self.count, begin = len(places), 0
        for at, (place, size) in enumerate(zip(places, sizes)):
            if place.dtype:
                rows = size // place.row_bytes if place.row_bytes else 0
                self.members.append(Member(place, at, begin, begin + size, (rows, *place.row)))
                begin += size + -size % 8
        self.nbytes = begin
        of = [member.place for member in self.members]
        self.at = np.array([member.at for member in self.members])
        self.begins = np.array([member.begin for member in self.members])
        self.layers = np.array([place.layer for place in of])
        self.points = objects([place.point for place in of])
        self.dtypes = objects([place.dtype for place in of])
        self.axes = objects([AXES[place.point] for place in of])
        self.shapes = objects([member.shape for member in self.members])
        self.rows = np.array([member.shape[0] for member in self.members])
        self.paths = [f"/{member.folder}/{member.place.point}" for member in self.members]
        self.spans = [(member.begin, member.end) for member in self.members]

    @functools.cached_property
    def seen(self) -> frozenset[tuple[int, str, int]]:
        """As a pass notes what was shown, of which each may be there once."""
        return frozenset((member.place.layer, member.place.point, -1) for member in self.members)

    @functools.cached_property
    def groups(self) -> list[Group]:
        found: dict[str, list[int]] = {}
        for i, member in enumerate(self.members):
            found.setdefault(member.folder, []).append(i)
        return [Group(name, tuple((self.members[i].place.point, self.members[i].place.dtype,
                                   self.members[i].shape) for i in some), np.array(some))
                for name, some in found.items()]

    @functools.cached_property
    def alike(self) -> list[tuple[str, int, list[int]]]:
        """Members of one dtype and size: dtype, bytes of each, numbers of them."""
        found: dict[tuple[str, int], list[int]] = {}
        for i, member in enumerate(self.members):
            found.setdefault((member.place.dtype, member.end - member.begin), []).append(i)
        return [(dtype, size, some) for (dtype, size), some in found.items()]


class Block(NamedTuple):
    """What a pass has of a layout: bytes, each tensor at a multiple of 8."""

    number: int
    layout: Layout
    raw: NDArray[np.uint8]
    runs: Sequence[Run]
    digest_only: bool = False

    def paths(self) -> list[str]:
        """Where each lies in the file; "": its digest alone is kept."""
        if self.digest_only:
            return [""] * len(self.layout.paths)
        folder = f"/tensors/pass{self.number:06d}"
        return [folder + path for path in self.layout.paths]


def elements_in(raw: NDArray[np.uint8], member: Member) -> Elements:
    """One of the tensors of a block."""
    bits = raw[member.begin:member.end].view(STORAGE[member.place.dtype])
    return Elements(bits.reshape(member.shape), member.place.dtype)


def narrowed(layout: Layout, raw: NDArray[np.uint8], wanted: Callable[[Place], bool],
             rows: NDArray[np.bool_] | None = None
             ) -> tuple[list[Place], list[int], NDArray[np.uint8]]:
    """Of those tensors that are wanted these rows (None: all): places and sizes, as a layout is
    made of, and their bytes."""
    places, sizes = [NOTHING] * layout.count, [0] * layout.count
    parts = [np.zeros(0, np.uint8)]
    for place, at, begin, end, _ in layout.members:
        if not wanted(place):
            continue
        part = raw[begin:end]
        if rows is not None:
            part = np.ascontiguousarray(part.reshape(len(rows), -1)[rows]).reshape(-1)
        places[at], sizes[at] = place, part.nbytes
        parts += [part, np.zeros(-part.nbytes % 8, np.uint8)]
    return places, sizes, np.concatenate(parts)


class Room:
    """Memory that tensors are copied to, one behind the other, each at a multiple of 8 bytes."""

    def __init__(self) -> None:
        self.used = 0
        self._grow(ROOM_BYTES)

    def has(self, size: int) -> bool:
        return self.used + size + 8 <= self._bytes.nbytes

    def put(self, address: int, size: int) -> None:
        """Copies that memory of the host; whoever finds no room empties it before."""
        if not self.has(size):
            self._grow(size + 8)
        ctypes.memmove(self._address + self.used, address, size)
        self.used += size
        if size % 8:
            ctypes.memset(self._address + self.used, 0, -size % 8)
            self.used += -size % 8

    def emptied(self) -> NDArray[np.uint8]:
        """What is in it."""
        found = self._bytes[:self.used].copy()
        self.used = 0
        return found

    def _grow(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8)
        self._address = self._bytes.ctypes.data


def stacked(blocks: Sequence[Block]) -> Iterator[tuple[list[int], Layout, NDArray[np.uint8]]]:
    """Blocks of one layout together: their numbers here, and their bytes [block, byte]."""
    found: dict[int, list[int]] = {}
    for i, block in enumerate(blocks):
        found.setdefault(id(block.layout), []).append(i)
    for some in found.values():
        first = blocks[some[0]]
        yield some, first.layout, (first.raw[None] if len(some) == 1 else
                                   np.stack([blocks[i].raw for i in some]))
