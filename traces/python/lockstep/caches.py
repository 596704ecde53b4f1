"""K and V as attention reads them: hashed a position, each once, and kept where they are wrong."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.digest import row_hashes
from lockstep.elements import Elements, from_torch


@dataclasses.dataclass
class LayerCache:
    """What attention read last of a layer: the bits, and the hash of each position."""

    keys: Tensor                  # integers [batch, kv head, column, dim]
    values: Tensor
    hashes: NDArray[np.uint64]    # [batch, column], of K, then V

    @property
    def columns(self) -> int:
        return int(self.hashes.shape[1])


def bits_of(tensor: Tensor) -> Tensor:
    """The same memory as integers, which compare as bits: 0 is not -0, and NaN is itself."""
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def joined(keys: Tensor, values: Tensor) -> Elements:
    """[batch, kv head, column, dim] of one row of the batch as [column, 2, kv head, dim]."""
    return from_torch(torch.stack((keys, values)).permute(2, 0, 1, 3))


class CacheHashes:
    """Hashes of what attention reads. A position whose bits are as they were is not hashed again:
    a step of decode hashes one, however long the cache is.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[Any, int], LayerCache] = {}
        self._written: dict[tuple[int, int], NDArray[np.uint64]] = {}  # by layer and request

    def write(self, layer: int, requests: Sequence[int], positions: Sequence[int],
              keys: Elements, values: Elements) -> None:
        """What a pass computed for the cache; row i is of that request and position."""
        marks = row_hashes(np.ascontiguousarray(np.stack((keys.bits, values.bits), axis=1)))
        for request, position, mark in zip(requests, positions, marks):
            room = self._written.get((layer, request))
            if room is None or len(room) <= position:
                grown = np.zeros(2 * position + 64, np.uint64)
                grown[:0 if room is None else len(room)] = 0 if room is None else room
                room = self._written[layer, request] = grown
            room[position] = mark

    def read(self, session: Any, layer: int, keys: Tensor, values: Tensor) -> NDArray[np.uint64]:
        """The hash of each position that a pass reads: [batch, column]."""
        k, v = bits_of(keys.detach()), bits_of(values.detach())
        hashes = np.zeros((k.shape[0], k.shape[2]), np.uint64)
        fresh = torch.ones(hashes.shape, dtype=torch.bool)
        before = self._layers.get((session, layer))
        if before is not None and before.hashes.shape[0] == len(hashes):
            n = min(before.columns, hashes.shape[1])
            differs = (k[:, :, :n] != before.keys[:, :, :n]).any(3).any(1)
            differs |= (v[:, :, :n] != before.values[:, :, :n]).any(3).any(1)
            fresh[:, :n] = differs.cpu()
            hashes[:, :n] = before.hashes[:, :n]
        b, t = fresh.nonzero(as_tuple=True)
        rows = torch.stack((k.transpose(1, 2)[b, t], v.transpose(1, 2)[b, t]), dim=1)
        hashes[b.numpy(), t.numpy()] = row_hashes(rows.cpu().contiguous().numpy())
        # Copies: a cache may be written in place.
        self._layers[session, layer] = LayerCache(k.clone(), v.clone(), hashes)
        return hashes

    def written(self, layer: int, request: int, count: int) -> NDArray[np.uint64]:
        """The hash of what passes wrote last for the first `count` positions."""
        return self._written.get((layer, request), np.zeros(0, np.uint64))[:count].copy()
