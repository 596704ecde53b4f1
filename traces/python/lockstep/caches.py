"""K and V as attention reads them: hashed a position, each once, and kept where they are wrong."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.digest import row_hashes, xxh3
from lockstep.elements import Elements, from_torch


class LayerCache:
    """What attention read last of a layer: the bits, and the hash of each position."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._room = [keys.clone(), values.clone()]  # [batch, kv head, column, dim], with more
        self.columns = keys.shape[2]
        self.hashes: NDArray[np.uint64] = np.zeros((keys.shape[0], 0), np.uint64)

    def halves(self, columns: int) -> list[Tensor]:
        """K and V of the first columns. Nobody changes them any more."""
        return [room.narrow(2, 0, columns) for room in self._room]

    def take(self, keys: Tensor, values: Tensor) -> bool:
        """Whether these are the same positions with the same bits, and perhaps more behind them,
        which are copied then."""
        end, columns = self.columns, keys.shape[2]
        now = (keys, values)
        if columns < end or not all(torch.equal(bits_of(half.narrow(2, 0, end)), bits_of(before))
                                    for half, before in zip(now, self.halves(end))):
            return False
        for i, half in enumerate(now):
            if columns > self._room[i].shape[2]:
                grown = half.new_empty((*half.shape[:2], columns + columns // 2, half.shape[3]))
                grown.narrow(2, 0, end).copy_(self._room[i].narrow(2, 0, end))
                self._room[i] = grown
            if columns > end:
                self._room[i].narrow(2, end, columns - end).copy_(half.narrow(2, end,
                                                                             columns - end))
        self.columns = columns
        return True


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as integers, which compare as bits: 0 is not -0, and NaN is itself."""
    if tensor.shape[-1] * tensor.element_size() % 8 == 0:
        return tensor.view(torch.int64)
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def joined(keys: Tensor, values: Tensor) -> Elements:
    """[batch, kv head, column, dim] of one row of the batch as [column, 2, kv head, dim]."""
    return from_torch(torch.stack((keys, values)).permute(2, 0, 1, 3))


def _hashes_of(halves: Sequence[Tensor], begin: int) -> NDArray[np.uint64]:
    """Of [batch, kv head, column, dim], the hash of K, then V, of each position from `begin` on."""
    batch, _, columns, _ = halves[0].shape
    count = columns - begin
    rows = np.concatenate([half.narrow(2, begin, count).cpu().numpy().swapaxes(1, 2)
                           .reshape(batch, count, -1) for half in map(bits_of, halves)], 2)
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

    def take(self, session: Any, layer: int, keys: Tensor, values: Tensor) -> list[Tensor]:
        """Copies of what a pass reads, K and V [batch, kv head, column, dim]: where they begin as
        they were, what follows is all that is copied."""
        keys, values = keys.detach(), values.detach()
        kept = self._layers.get((session, layer))
        if kept is None or not kept.take(keys, values):
            kept = self._layers[session, layer] = LayerCache(keys, values)
        return kept.halves(kept.columns)

    def read(self, session: Any, layer: int) -> NDArray[np.uint64]:
        """The hash of each position of what was taken last: [batch, column]."""
        kept = self._layers[session, layer]
        begin = kept.hashes.shape[1]
        if begin < kept.columns:
            kept.hashes = np.concatenate(
                [kept.hashes, _hashes_of(kept.halves(kept.columns), begin)], axis=1)
        return kept.hashes

    def written(self, layer: int, request: int, count: int) -> NDArray[np.uint64]:
        """The hash of what passes wrote last for the first `count` positions."""
        return self._written.get((layer, request), np.zeros(0, np.uint64))[:count].copy()
