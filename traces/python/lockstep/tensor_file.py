"""An HDF5 file of contiguous tensors in groups, written byte by byte.

libhdf5 takes a tenth of a millisecond to make a data set with its attributes, and a step of decode
has a hundred of them. Here they are made of the same few bytes, in the oldest version of the format
(superblock 0, object headers 1, groups as symbol tables), which has no checksums; libhdf5 goes on
with the file from there. Names are those of the HDF5 File Format Specification, version 3.0.
"""
from __future__ import annotations

import concurrent.futures
import itertools
import math
import pathlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from h5py import h5t
from numpy.typing import NDArray

from lockstep.blocks import Block, padded_to_words
from lockstep.elements import STORAGE, Elements
from lockstep.hdf5 import TYPES

BASE = 512  # bytes before the file proper, whose addresses are counted from there
NOWHERE = 0xFFFFFFFFFFFFFFFF
LEAF, INNER = 12, 8  # half of the most entries of a symbol table node, and of a B-tree node
SUPERBLOCK_BYTES = 96

Links = Sequence[tuple[str, int]]  # of a group: name and address
Kind = tuple[tuple[str, str, tuple[int, ...]], ...]  # of a group: names, dtypes and shapes


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 8)


def _message(kind: int, body: bytes, flags: int = 0) -> bytes:
    body = _padded(body)
    return struct.pack("<HHB3x", kind, len(body), flags) + body


def _header(*messages: bytes) -> bytes:
    """An object that one link leads to."""
    body = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def _datatype(kind: h5t.TypeID) -> bytes:
    return kind.encode()[2:]  # behind the number of the message and a version


def _dataspace(shape: Sequence[int]) -> bytes:
    return struct.pack(f"<BBB5x{len(shape)}Q", 1, len(shape), 0, *shape)


# A text of variable length in UTF-8: 16 bytes that lead into a global heap.
_TEXT = struct.pack("<4BI", 0x19, 1, 1, 0, 16) + struct.pack("<4BIHH", 0x10, 0, 0, 0, 1, 0, 8)
_INT64 = _datatype(h5t.STD_I64LE)
_SCALAR = _dataspace(())


def _attribute(name: str, datatype: bytes, value: bytes) -> bytes:
    raw = name.encode() + b"\0"
    return _message(0x0C, struct.pack("<BxHHH", 1, len(raw), len(datatype), len(_SCALAR)) +
                    _padded(raw) + _padded(datatype) + _SCALAR + value)


class _Metadata:
    """What follows the tensors, in the order in which it will lie there."""

    def __init__(self, begin: int) -> None:
        self._at = begin
        self.blocks: list[bytes] = []
        self._texts: dict[str, bytes] = {}  # the value of an attribute, of each text
        self._parts: dict[tuple[str, tuple[int, ...], str], tuple[bytes, bytes]] = {}

    @property
    def end(self) -> int:
        return self._at

    def put(self, raw: bytes) -> int:
        """Its address."""
        address, raw = self._at, _padded(raw)
        self.blocks.append(raw)
        self._at += len(raw)
        return address

    def put_texts(self, texts: Sequence[str]) -> None:
        """A global heap of them; each is there once, for all attributes that have it."""
        raw = [text.encode() for text in texts]
        body = b"".join(struct.pack("<HHIQ", i, 1, 0, len(text)) + _padded(text)
                        for i, text in enumerate(raw, 1))
        size = max(4096, 16 + len(body) + 16)
        left = size - 16 - len(body)
        heap = b"GCOL" + struct.pack("<B3xQ", 1, size) + body + struct.pack("<HHIQ", 0, 0, 0, left)
        address = self.put(heap + bytes(size - len(heap)))
        for i, text in enumerate(raw, 1):
            self._texts[texts[i - 1]] = struct.pack("<IQI", len(text), address, i)

    def put_data_set(self, kept: _Kept, axes: str) -> int:
        kind = (kept.dtype, kept.shape, axes)
        if kind not in self._parts:
            self._parts[kind] = self._parts_of(*kind)
        head, between = self._parts[kind]
        size = math.prod(kept.shape) * STORAGE[kept.dtype].itemsize
        place = kept.address if size else NOWHERE
        return self.put(head + struct.pack("<QQ", place, size) + between +
                        struct.pack("<q", kept.seq))

    def _parts_of(self, dtype: str, shape: tuple[int, ...], axes: str) -> tuple[bytes, bytes]:
        """The header of a data set before its place, and from there to its number."""
        layout = struct.pack("<BBQQ", 3, 1, 0, 0)
        header = _header(
            _message(0x01, _dataspace(shape)),
            _message(0x03, _datatype(TYPES[dtype]), 1),
            _message(0x05, struct.pack("<4B", 2, 2, 2, 0), 1),  # no value fills it
            _message(0x08, layout),
            _attribute("dtype", _TEXT, self._texts[dtype]),
            _attribute("axes", _TEXT, self._texts[axes]),
            _attribute("seq", _INT64, bytes(8)))
        at = header.index(_message(0x08, layout)) + 8 + 2
        return header[:at], header[at + 16:-8]

    def put_alike(self, kind: Kind, places: Sequence[_Places], axes: Mapping[str, str]
                  ) -> list[int]:
        """The addresses of groups of data sets that have the same names, dtypes and shapes, as a
        layer has them in every pass of one row: they differ in places and numbers alone, so that
        one of them is made, and these words put into copies of it."""
        first = [_Kept(*parts, 0, 0) for parts in kind]
        words, header = self._words_of(first, axes)
        begins = self._at + words.nbytes * np.arange(len(places), dtype=np.uint64)
        made = np.tile(words, (len(places), 1))
        far, _ = self._words_of(first, axes, begin=1 << 40)
        made[:, far != words] += begins[:, None]
        halves = made.view("<u2")  # the place of a data set begins with none of its words
        for field, many in (("address", "addresses"), ("seq", "seqs")):
            marked, _ = self._words_of([kept._replace(**{field: i}) for i, kept in
                                        enumerate(first, 1)], axes)
            at = np.flatnonzero(marked.view("<u2") != words.view("<u2"))
            values = np.stack([getattr(some, many) for some in places]).astype("<u8")
            values = values[:, marked.view("<u2")[at] - 1]
            halves[:, at[:, None] + np.arange(4)] = values[:, :, None].view("<u2")
        self.put(made.tobytes())
        return (begins + np.uint64(header)).tolist()

    def _words_of(self, members: Sequence[_Kept], axes: Mapping[str, str], begin: int = 0
                  ) -> tuple[NDArray[np.uint64], int]:
        """A group as if it began there, and where in it its header is."""
        made = _Metadata(begin)
        made._texts, made._parts = self._texts, self._parts
        header = made.put_group([(kept.name, made.put_data_set(kept, axes[kept.name]))
                                 for kept in members])
        return np.frombuffer(b"".join(made.blocks), "<u8"), header - begin

    def put_group(self, links: Links) -> int:
        address, _, _ = self.put_symbols(links)
        return address

    def put_symbols(self, links: Links) -> tuple[int, int, int]:
        """The addresses of a group's header, its B-tree and its heap of names."""
        links = sorted(links)
        names, offsets = [bytes(8)], []  # the first name is empty
        size = 8
        for name, _ in links:
            raw = _padded(name.encode() + b"\0")
            names.append(raw)
            offsets.append(size)
            size += len(raw)
        data = self.put(b"".join(names))
        heap = self.put(b"HEAP" + struct.pack("<B3xQQQ", 0, size, 1, data))
        tree = self._put_tree(links, offsets)
        return self.put(_header(_message(0x11, struct.pack("<QQ", tree, heap)))), tree, heap

    def _put_tree(self, links: Links, offsets: Sequence[int]) -> int:
        """children: address, and where the heap has the last name below it."""
        children = []
        for first in range(0, max(len(links), 1), 2 * LEAF):
            entries = [struct.pack("<QQ24x", offset, address) for offset, (_, address)
                       in zip(offsets[first:first + 2 * LEAF], links[first:first + 2 * LEAF])]
            node = b"SNOD" + struct.pack("<BxH", 1, len(entries)) + b"".join(entries)
            if entries:
                children.append((self.put(node.ljust(8 + 2 * LEAF * 40, b"\0")),
                                 offsets[first + len(entries) - 1]))
        level = 0
        while True:
            children = self._put_level(children, level)
            if len(children) == 1:
                return children[0][0]
            level += 1

    def _put_level(self, children: Sequence[tuple[int, int]], level: int) -> list[tuple[int, int]]:
        """Nodes that have all of these below them. Nodes of a level know their neighbours."""
        size = 24 + (4 * INNER + 1) * 8
        parts = [children[i:i + 2 * INNER] for i in range(0, len(children), 2 * INNER)] or [[]]
        before, nodes = 0, []
        for i, part in enumerate(parts):
            left = self._at - size if i else NOWHERE
            right = self._at + size if i + 1 < len(parts) else NOWHERE
            keys = [before] + [number for child in part for number in child]
            raw = b"TREE" + struct.pack("<BBHQQ", 0, level, len(part), left, right)
            nodes.append((self.put((raw + struct.pack(f"<{len(keys)}Q", *keys)).ljust(size, b"\0")),
                          keys[-1]))
            before = keys[-1]
        return nodes


class _Kept(NamedTuple):
    """A tensor that lies in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    seq: int


class _Places(NamedTuple):
    """Where the data sets of a group lie, and their numbers."""

    addresses: NDArray[np.int64]
    seqs: NDArray[np.int64]


class TensorFile:
    """A new file whose tensors are written as they come. It is one of HDF5 when it is finished;
    until then it has their bytes alone, and its beginning is not that of a file of HDF5.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=1 << 18)
        self._file.write(bytes(BASE + SUPERBLOCK_BYTES))
        self._at = SUPERBLOCK_BYTES
        # Below /tensors, and below that, parts as they came.
        self._groups: dict[str, dict[str, list[tuple[Kind, _Places]]]] = {}
        self._raw: list[Any] = []  # what is added and not handed to the disk yet
        self._writer = concurrent.futures.ThreadPoolExecutor(1)
        self._writing: concurrent.futures.Future[None] | None = None  # what was added last

    def add(self, path: str, tensor: Elements, seq: int) -> None:
        """Path /tensors/GROUP/GROUP/NAME, used once, elements, which nobody may change any more,
        and number in the index."""
        _, _, outer, inner, name = path.split("/")
        bits = tensor.bits
        self._put(outer, inner, ((name, tensor.dtype, bits.shape),),
                  _Places(np.array([self._at]), np.array([seq])))
        self._raw.append(bits.data)
        self._at += bits.nbytes
        if self._at % 8:
            self._raw.append(bytes(-self._at % 8))
            self._at += -self._at % 8

    def add_block(self, block: Block, seqs: NDArray[np.int64]) -> None:
        """The same of many tensors."""
        addresses = []
        for part in map(padded_to_words, block.parts):
            step = part.shape[1] * part.itemsize
            addresses.append(self._at + step * np.arange(len(part)))
            self._raw.append(part.data)
            self._at += part.nbytes
        where, outer = np.concatenate(addresses), f"pass{block.number:06d}"
        for inner, kind, members in block.layout.groups:
            self._put(outer, inner, kind, _Places(where[members], seqs[members]))

    def _put(self, outer: str, inner: str, kind: Kind, places: _Places) -> None:
        self._groups.setdefault(outer, {}).setdefault(inner, []).append((kind, places))

    def flush(self) -> None:
        """What was added is written while the next is made ready."""
        self._wait()
        raw, self._raw = self._raw, []
        self._writing = self._writer.submit(self._file.writelines, raw)

    def _wait(self) -> None:
        """Until all that was added is written. Raises what the disk said."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def finish(self, axes_of: Callable[[str], str]) -> int:
        """Closes the file. Where that begins which is no tensor. axes_of: the axes, by name."""
        self.flush()
        self._wait()
        rest = _Metadata(self._at)
        alike: dict[Kind, list[tuple[str, str, _Places]]] = {}
        for outer, groups in self._groups.items():
            for inner, parts in groups.items():
                kind, places = _joined(parts)
                alike.setdefault(kind, []).append((outer, inner, places))
        axes = {name: axes_of(name) for name in {name for kind in alike for name, _, _ in kind}}
        rest.put_texts(sorted({dtype for kind in alike for _, dtype, _ in kind} |
                              set(axes.values())))
        links: dict[str, list[tuple[str, int]]] = {outer: [] for outer in self._groups}
        for kind, same in alike.items():
            for (outer, inner, _), address in zip(same, rest.put_alike(
                    kind, [places for *_, places in same], axes)):
                links[outer].append((inner, address))
        root = rest.put_symbols([("tensors", rest.put_group(
            [(outer, rest.put_group(some)) for outer, some in links.items()]))])
        self._file.write(b"".join(rest.blocks))
        self._file.seek(BASE)
        self._file.write(_superblock(rest.end, root))
        self.close()
        return BASE + self._at

    def close(self) -> None:
        """Closes the file as it is."""
        self._writer.shutdown()
        self._file.close()


def _joined(parts: Sequence[tuple[Kind, _Places]]) -> tuple[Kind, _Places]:
    """A group that was added in parts."""
    if len(parts) == 1:
        return parts[0]
    kind = tuple(itertools.chain.from_iterable(kind for kind, _ in parts))
    return kind, _Places(np.concatenate([places.addresses for _, places in parts]),
                         np.concatenate([places.seqs for _, places in parts]))


def _superblock(end: int, root: tuple[int, int, int]) -> bytes:
    """root: the addresses of the root group's header, B-tree and heap of names."""
    return (b"\x89HDF\r\n\x1a\n" +
            struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, LEAF, INNER, 0) +
            struct.pack("<QQQQ", BASE, NOWHERE, BASE + end, NOWHERE) +
            struct.pack("<QQIIQQ", 0, root[0], 1, 0, *root[1:]))
