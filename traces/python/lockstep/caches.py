"""K and V as attention reads them: hashed a position, each once, and kept where they are wrong."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.digest import row_hashes, xxh3
from lockstep.elements import STORAGE, Elements

Bits = Any  # integers of numpy or torch


class LayerCache:
    """What attention read last of a layer: the bits, and the hash of each position."""

    def __init__(self, halves: Sequence[Bits], dtype: torch.dtype) -> None:
        self.dtype = dtype
        # K and V, [batch, kv head, column, dim], with room for more columns.
        self._room = [_copied_to(_empty_like(half, half.shape[2]), half) for half in halves]
        self.columns = int(halves[0].shape[2])
        self.hashes: NDArray[np.uint64] = np.zeros((len(halves[0]), 0), np.uint64)

    def halves(self, begin: int = 0) -> list[Bits]:
        """K and V of the columns from `begin` on. Nobody changes them any more."""
        return [room[:, :, begin:self.columns] for room in self._room]

    def take(self, halves: Sequence[Bits]) -> bool:
        """Whether these are the same positions with the same bits, and perhaps more behind them,
        which are copied then."""
        end, columns = self.columns, int(halves[0].shape[2])
        if columns < end or not all(_same(half[:, :, :end], before)
                                    for half, before in zip(halves, self.halves())):
            return False
        if columns > self._room[0].shape[2]:
            self._room = [_copied_to(_empty_like(before, columns + columns // 2), before)
                          for before in self.halves()]
        if columns > end:
            for room, half in zip(self._room, halves):
                room[:, :, end:columns] = half[:, :, end:]
        self.columns = columns
        return True


def bits_of(tensor: Tensor) -> Bits:
    """The same memory as integers, which compare as bits: 0 is not -0, and NaN is itself. Of the
    host an array of numpy, which takes a fifth of the time for what is small."""
    width = 8 if tensor.shape[-1] * tensor.element_size() % 8 == 0 else tensor.element_size()
    bits = tensor.detach().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[width])
    return bits.numpy() if bits.is_cpu else bits


def _same(a: Bits, b: Bits) -> bool:
    if isinstance(a, np.ndarray):
        return bool((a == b).all())
    return torch.equal(a, b)


def _empty_like(bits: Bits, columns: int) -> Bits:
    shape = (*bits.shape[:2], columns, bits.shape[3])
    return np.empty(shape, bits.dtype) if isinstance(bits, np.ndarray) else bits.new_empty(shape)


def _copied_to(room: Bits, bits: Bits) -> Bits:
    room[:, :, :bits.shape[2]] = bits
    return room


def _on_host(bits: Bits) -> NDArray[Any]:
    return bits if isinstance(bits, np.ndarray) else bits.cpu().numpy()


def joined(halves: Sequence[Bits], b: int, columns: NDArray[np.bool_], dtype: str) -> Elements:
    """Some columns of one row of a batch, as [column, 2, kv head, dim] of the dtype."""
    both = np.stack([_on_host(half)[b].swapaxes(0, 1)[columns] for half in halves], 1)
    return Elements(np.ascontiguousarray(both).view(STORAGE[dtype]), dtype)


def _hashes_of(halves: Sequence[Bits]) -> NDArray[np.uint64]:
    """Of [batch, kv head, column, dim], the hash of K, then V, of each position."""
    batch, _, count, _ = halves[0].shape
    rows = np.concatenate([_on_host(half).swapaxes(1, 2).reshape(batch, count, -1)
                           for half in halves], 2)
    marks = row_hashes(rows.reshape(batch * count, -1))
    return np.array(marks, np.uint64).reshape(batch, count)


class CacheHashes:
    """Hashes of what attention reads. Where the bits are as they were, a step of decode hashes one
    position, however long the cache is.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[Any, int], LayerCache] = {}
        self._written: dict[tuple[int, int], NDArray[np.uint64]] = {}  # by layer and request

    def write(self, layer: int, requests: Sequence[int], positions: Sequence[int],
              keys: Elements, values: Elements) -> None:
        """What a pass computed for the cache; row i is of that request and position."""
        marks = row_hashes(np.stack((keys.bits, values.bits), axis=1)) if len(keys.bits) > 1 else \
            [xxh3(keys.bits.tobytes() + values.bits.tobytes())]
        for request, position, mark in zip(requests, positions, marks):
            room = self._written.get((layer, request))
            if room is None or len(room) <= position:
                grown = np.zeros(2 * position + 64, np.uint64)
                grown[:0 if room is None else len(room)] = 0 if room is None else room
                room = self._written[layer, request] = grown
            room[position] = mark

    def take(self, session: Any, layer: int, keys: Tensor, values: Tensor) -> LayerCache:
        """Copies what a pass reads, K and V [batch, kv head, column, dim]: where they begin as they
        were, what follows is all that is copied."""
        halves = bits_of(keys), bits_of(values)
        kept = self._layers.get((session, layer))
        if kept is None or not kept.take(halves):
            kept = self._layers[session, layer] = LayerCache(halves, keys.dtype)
        return kept

    @staticmethod
    def read(kept: LayerCache) -> NDArray[np.uint64]:
        """The hash of each position of what was taken: [batch, column]."""
        begin = kept.hashes.shape[1]
        if begin < kept.columns:
            kept.hashes = np.concatenate([kept.hashes, _hashes_of(kept.halves(begin))], axis=1)
        return kept.hashes

    def written(self, layer: int, request: int, count: int) -> NDArray[np.uint64]:
        """The hash of what passes wrote last for the first `count` positions."""
        return self._written.get((layer, request), np.zeros(0, np.uint64))[:count].copy()
