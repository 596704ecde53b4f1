"""What of HDF5 a trace needs beyond h5py's own: bf16, columns, the seal."""
from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s, h5t
from numpy.typing import NDArray

from lockstep.digest import xxh3
from lockstep.elements import STORAGE, Elements

SEAL_BYTES = 512  # the user block, which readers of HDF5 skip
TEXT = h5py.string_dtype()


def _bf16_type() -> h5t.TypeID:
    """The HDF5 float that has the bits of a bf16."""
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_precision(16)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


TYPES: dict[str, h5t.TypeID] = {
    name: _bf16_type() if name == "bf16" else h5t.py_create(stored)
    for name, stored in STORAGE.items()}


def reopen(path: pathlib.Path) -> h5py.File:
    """A file that is there, to write on at its end."""
    return h5py.File(path, "r+", libver=("v110", "v110"))


def read_tensor(file: h5py.File, path: str, dtype: str,
                rows: NDArray[Any] | None = None) -> Elements:
    """The bits of a tensor, or of some of its rows; the library's conversion is slow."""
    data = file[path]
    if dtype == "bf16":
        raw = np.empty(data.shape, STORAGE[dtype])
        if raw.size:
            data.id.read(h5s.ALL, h5s.ALL, raw, mtype=data.id.get_type())
        return Elements(raw if rows is None else raw[rows], dtype)
    return Elements(data[()] if rows is None else data[()][rows], dtype)


class Columns:
    """Columns that grow; parts divide flat ones, and their edges are columns too."""

    def __init__(self, types: Mapping[str, Any], edges: Sequence[str] = ()) -> None:
        self._types = types
        self._values: dict[str, list[Any]] = {name: [] for name in types}
        self._parts: dict[str, list[Sequence[Any] | NDArray[Any]]] = {}
        self._edges: dict[str, list[int]] = {name: [0] for name in edges}

    def add(self, values: Mapping[str, Any]) -> None:
        """One entry of each of these columns."""
        for name, value in values.items():
            self._values[name].append(value)

    def extend(self, values: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Entries of each of these columns, to which none is added alone."""
        for name, some in values.items():
            self._parts.setdefault(name, []).append(some)

    def add_many(self, edges: str, lengths: Sequence[int] | NDArray[Any],
                 values: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Entries of parts of these lengths, whose edges are so named, one after the other."""
        ends = self._edges[edges]
        ends += (ends[-1] + np.cumsum(lengths, dtype=np.int64)).tolist()
        for name, parts in values.items():
            self._parts.setdefault(name, []).append(parts)

    def add_parts(self, edges: str, values: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Entries of one part, as many of each column, whose edges are so named."""
        ends = self._edges[edges]
        for name, part in values.items():
            self._parts.setdefault(name, []).append(part)
        ends.append(ends[-1] + len(part))

    def count(self, name: str) -> int:
        return len(self._values[name])

    def column(self, name: str) -> NDArray[Any]:
        """All its entries so far."""
        kind = self._types[name]
        if name not in self._parts:
            return np.array(self._values[name], dtype=object if kind is TEXT else kind)
        return _joined(self._parts[name], kind)

    def write(self, group: h5py.Group, below: h5py.Group | None = None,
              parts: Sequence[str] = ()) -> None:
        """below: the group of edges and of these columns, which are in parts."""
        below = group if below is None else below
        for name, kind in self._types.items():
            values = self.column(name)
            owner = below if name in parts else group
            if kind is TEXT:
                owner.create_dataset(name, data=values, dtype=kind)
            else:
                _write_numbers(owner, name, values)
        for name, ends in self._edges.items():
            _write_numbers(below, name, np.array(ends, np.int64))


def _write_numbers(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """create_dataset without its many options, which take longer than a column."""
    kind, space = h5t.py_create(values.dtype), h5s.create_simple(values.shape)
    data = h5d.create(group.id, name.encode(), kind, space)
    if values.size:
        data.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(values), mtype=kind)


def _joined(parts: Sequence[Sequence[Any] | NDArray[Any]], kind: Any) -> NDArray[Any]:
    """All entries of a column whose parts are all arrays, or all lists."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts).astype(kind, copy=False)
    if kind is TEXT:
        return np.array(list(itertools.chain.from_iterable(parts)), object)
    return np.fromiter(itertools.chain.from_iterable(parts), kind)


def seal(path: pathlib.Path, begin: int) -> None:
    """The line in the user block: the size, and a hash of all from `begin` on."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(begin)
        line = f"lockstep trace: {size:016x} bytes, xxh3 from {begin:016x} on "
        line += f"{xxh3(file.read()):016x}\n"
        file.seek(0)
        file.write(line.encode().ljust(SEAL_BYTES, b"\0"))
        file.flush()
        os.fsync(file.fileno())
