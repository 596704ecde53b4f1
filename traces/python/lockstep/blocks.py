"""Tensors that a pass shows together: converted, hashed and written as a few arrays."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.elements import view_of_torch
from lockstep.points import AXES
from lockstep.rows import Run

SMALL = 1 << 16  # elements: what is copied sooner than converted


class Member(NamedTuple):
    """A tensor of a block."""

    at: int                  # when it was computed, among all that the pass showed with it
    layer: int
    point: str
    shape: tuple[int, ...]   # as it is recorded: the row first

    @property
    def folder(self) -> str:
        return "model" if self.layer < 0 else f"layer{self.layer:03d}"


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
    """Which tensors of one dtype are in a block. A step of decode has the same ones each time, so
    that what can be known of them is found once.

    They are in an order of their own, where those of one size are neighbours.
    """

    def __init__(self, members: Sequence[Member], dtype: str) -> None:
        self.members, self.dtype = members, dtype
        self.at = np.array([member.at for member in members])
        self.layers = np.array([member.layer for member in members])
        self.points = objects([member.point for member in members])
        self.axes = objects([AXES[member.point] for member in members])
        self.shapes = objects([member.shape for member in members])
        self.paths = [f"/{member.folder}/{member.point}" for member in members]
        self.rows = np.array([member.shape[0] for member in members])
        self.number_of = {(layer, point): i for i, (_, layer, point, _) in enumerate(members)}

    def bits(self, parts: Sequence[NDArray[Any]], layer: int, point: str) -> NDArray[Any]:
        """Of one tensor, which is in these parts of a block, in its shape."""
        number = self.number_of[layer, point]
        shape = self.members[number].shape
        for part in parts:
            if number < len(part):
                return part[number].reshape(shape)
            number -= len(part)
        raise IndexError(point)

    @functools.cached_property
    def places(self) -> frozenset[tuple[int, str, int]]:
        """As a pass notes them, of which each may have one."""
        return frozenset((layer, point, -1) for layer, point in self.number_of)

    @functools.cached_property
    def groups(self) -> list[Group]:
        found: dict[str, list[int]] = {}
        for i, member in enumerate(self.members):
            found.setdefault(member.folder, []).append(i)
        return [Group(name, tuple((self.members[i].point, self.dtype, self.members[i].shape)
                                  for i in some), np.array(some)) for name, some in found.items()]


class Block(NamedTuple):
    """What a pass has of a layout. Each part is [tensor, element], of neighbours of one size."""

    number: int
    layout: Layout
    parts: Sequence[NDArray[Any]]
    runs: Sequence[Run]
    digest_only: bool = False

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def paths(self) -> list[str]:
        """Where each lies in the file; "": its digest alone is kept."""
        if self.digest_only:
            return [""] * len(self.layout.paths)
        folder = f"/tensors/pass{self.number:06d}"
        return [folder + path for path in self.layout.paths]


def parts_of(tensors: Sequence[Any]) -> tuple[list[NDArray[Any]], str]:
    """The bits of contiguous torch tensors of one dtype and device, smaller ones first: those of
    one size as the rows of an array. Small ones are converted together. And their dtype."""
    import torch
    sizes = [tensor.numel() for tensor in tensors]
    small = sum(size < SMALL for size in sizes)
    parts, name, begin, i = [], "", 0, 0
    if small:
        flat, name = view_of_torch(torch.cat([tensor.view(-1) for tensor in tensors[:small]]))
        while i < small:
            count = sizes[i:small].count(sizes[i])
            end = begin + count * sizes[i]
            parts.append(flat[begin:end].reshape(count, sizes[i]))
            begin, i = end, i + count
    for tensor in tensors[small:]:
        bits, name = view_of_torch(tensor)
        parts.append(bits.reshape(1, -1))
    return parts, name


def padded_to_words(part: NDArray[Any]) -> NDArray[Any]:
    """The same where each tensor begins at 8 bytes, as the file wants it."""
    size = part.shape[1] * part.itemsize
    if size % 8 == 0:
        return part
    made = np.zeros((len(part), size + -size % 8), np.uint8)
    made[:, :size] = part.view(np.uint8)
    return made

