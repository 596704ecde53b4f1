"""Reads a trace: tensors as float arrays, tables as data frames and data sets."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

import h5py
import numpy as np
from numpy.typing import NDArray

from lockstep import hdf5
from lockstep.digest import COUNTS, NUMBERS
from lockstep.elements import Elements
from lockstep.errors import LockstepError, check
from lockstep.graph import Node
from lockstep.journal import Journal, JournalTensor
from lockstep.points import AXES, INTEGER_POINTS, LOGIT_POINTS, MODEL_POINTS
from lockstep.rows import PassRows, Request, Row
from lockstep.writer import check_point

if TYPE_CHECKING:
    import pandas
    import xarray

Key = Union[str, tuple[str, Optional[int]], tuple[str, Optional[int], int],
            tuple[str, Optional[int], int, int]]


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A row of the index: a tensor of one pass, and whose rows it has."""

    seq: int
    number: int  # of its pass
    layer: int
    point: str
    dtype: str
    shape: tuple[int, ...]
    path: str  # in its file; "": its digest alone was kept
    rows: tuple[tuple[int, int], ...]  # request and position of each row

    @property
    def kept(self) -> bool:
        return bool(self.path)


class Trace:
    """A saved trace, X.h5, X.trace or X.journal, ours or another's.

        trace = Trace("x.h5")
        trace["attn.q", 3]                 # every row of every pass, [row, head, dim]
        trace["attn.q", 3, 0, 17]          # layer 3, request 0, position 17: [head, dim]
        trace.tensor("attn.q", 3, request=0, position=17)   # the same
        trace.index()                      # pandas.DataFrame, a row a tensor
        trace.dataset("attn.q", "attn.k")  # xarray.Dataset

    Floating tensors come as fp32, which bf16 and fp16 fit in exactly.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._files = [_open(part) for part in _parts(self.path)]
        self._from_journal: list[JournalTensor] = []
        self.passes: list[PassRows] = []
        self.tensors: list[TensorInfo] = []
        self._file_of: list[h5py.File | None] = []
        numbers: list[int] = []  # of passes
        if self._files:
            self._read_facts(self._files[-1])
        for file in self._files:
            numbers += _column(file["passes"], "number").tolist()
            self.passes += _read_passes(file["passes"])
            found = list(_read_index(file["index"]))
            self.tensors += found
            self._file_of += [file] * len(found)
        journal = _journal_of(self.path)
        if journal is not None:
            self._add(Journal(journal), numbers)

    def _read_facts(self, file: h5py.File) -> None:
        self.provenance: dict[str, str] = {name: str(text) for name, text
                                           in file["provenance"].attrs.items()
                                           if name != "schema_json"}
        self.schema: dict[str, str] = json.loads(file["provenance"].attrs.get("schema_json", "{}"))
        self.dtype = str(file.attrs["dtype"])
        self.graph = _read_graph(file["graph"])
        self.requests = _read_requests(file["requests"])

    def _add(self, journal: Journal, numbers: list[int]) -> None:
        """Takes the passes that no segment has."""
        told = journal.manifest
        self.provenance, self.schema = told["provenance"], told["schema"]
        self.dtype = told["dtype"]
        self.graph = [Node(node["point"], node["layer"], tuple(node["inputs"]))
                      for node in told["graph"]]
        self.requests = [Request(*(one[name] for name in (
            "id", "prompt", "tokens", "forced", "argmax", "sampled", "name")))
            for one in told["requests"]]
        there = set(numbers)
        for one in journal.passes:
            if one.number in there:
                continue
            numbers.append(one.number)
            self.passes.append(one.rows)
            self._from_journal += one.tensors
            self.tensors += [TensorInfo(t.seq, t.number, t.layer, t.point, t.dtype, t.shape, "",
                                        t.rows) for t in one.tensors]
            self._file_of += [None] * len(one.tensors)
        self.passes = [self.passes[i] for i in np.argsort(numbers, kind="stable")]
        order = np.argsort([info.seq for info in self.tensors], kind="stable").tolist()
        self.tensors = [self.tensors[i] for i in order]
        self._file_of = [self._file_of[i] for i in order]

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; what was read stays."""
        for file in self._files:
            file.close()

    def __repr__(self) -> str:
        return (f"Trace({str(self.path)!r}: {len(self.passes)} passes, {len(self.tensors)} tensors,"
                f" {len(self.requests)} requests, {self.dtype})")

    def __getitem__(self, key: Key) -> NDArray[Any]:
        parts = key if isinstance(key, tuple) else (key,)
        check(1 <= len(parts) <= 4, "a trace is asked for [point], [point, layer], "
              "[point, layer, request] or [point, layer, request, position]")
        point, layer, request, position = (*parts, None, None, None)[:4]
        return self.tensor(point, layer, request=request, position=position)

    def tensor(self, point: str, layer: int | None = None, *, request: int | None = None,
               position: int | None = None, number: int | None = None) -> NDArray[Any]:
        """The rows of a point that the run computed, in its order, [row, ...]; fp32 or int32.

        request, position, number (of a pass): of these alone. With a request and a position it is
        the one row, without its axis: the last of them where a position was computed again.
        """
        found = self._find(point, layer)
        parts, owners = [], []
        for i, info in found:
            if number is not None and info.number != number:
                continue
            wanted = [j for j, row in enumerate(info.rows)
                      if request in (None, row[0]) and position in (None, row[1])]
            if wanted:
                parts.append(self._values(i, np.array(wanted)))
                owners += wanted
        where = "".join(f", {name} {value}" for name, value in (
            ("request", request), ("position", position), ("pass", number)) if value is not None)
        check(parts, f"{self.path}: there is no row of {point}{where}")
        if request is not None and position is not None:
            return parts[-1][-1]
        return np.concatenate(parts)

    def rows(self, point: str, layer: int | None = None) -> NDArray[np.int64]:
        """Pass, request and position of each row that tensor() has: [row, 3]."""
        return np.array([(info.number, *row) for _, info in self._find(point, layer)
                         for row in info.rows], np.int64).reshape(-1, 3)

    def bits(self, info: TensorInfo) -> Elements:
        """The bits of one tensor as they are in the file."""
        check(info.kept, f"{self.path}: of {info.point} in pass {info.number} the digest alone was "
              "kept")
        return self._read(self.tensors.index(info))

    def index(self) -> pandas.DataFrame:
        """A row a tensor: pass, layer, point, dtype, shape, and its statistics. Needs pandas."""
        pandas = _import("pandas")
        names = ("seq", "pass", "layer", "point", "dtype", "axes", "path", "n", *COUNTS, *NUMBERS,
                 "xxh3")
        columns: dict[str, Any] = {
            name: np.concatenate([*(_column(file["index"], name) for file in self._files),
                                  [_of_journal(tensor, name) for tensor in self._from_journal]])
            for name in names}
        found = pandas.DataFrame(columns).set_index("seq").sort_index()
        found["shape"] = [info.shape for info in self.tensors]
        return found

    def dataset(self, *points: str) -> xarray.Dataset:
        """The tensors of these points (all that are kept whole), with layer, row and the point's
        own axes as dimensions; pass, request and position are coordinates of rows. Needs xarray.
        """
        xarray = _import("xarray")
        names = points or tuple(p for p in AXES if p != "attn.kv"
                                and any(t.point == p and t.kept for t in self.tensors))
        variables: dict[str, Any] = {}
        coordinates: dict[str, Any] = {}
        for point in names:
            check_point(point)
            layers = [None] if point in MODEL_POINTS else sorted(
                {info.layer for info in self.tensors if info.point == point})
            rows = self.rows(point, layers[0] if layers else None)
            row = "logit_row" if point in LOGIT_POINTS else "row"
            axes = [axis.replace(" ", "_") for axis in AXES[point].split(", ")[1:]]
            for at, name in enumerate(("pass", "request", "position")):
                label = name if row == "row" else f"logit_{name}"
                coordinates[label] = (row, rows[:, at])
            stacked = np.stack([self.tensor(point, layer) for layer in layers])
            if point in MODEL_POINTS:
                variables[point] = ([row, *axes], stacked[0])
                continue
            coordinates["layer"] = ("layer", layers)
            variables[point] = (["layer", row, *axes], stacked)
        return xarray.Dataset(variables, coordinates, self.provenance)

    def _find(self, point: str, layer: int | None) -> list[tuple[int, TensorInfo]]:
        check_point(point)
        at = -1 if layer is None else layer
        check((at < 0) == (point in MODEL_POINTS), f"{point} is "
              f"{'not of a layer' if at >= 0 else 'of a layer: name one'}")
        found = [(i, info) for i, info in enumerate(self.tensors)
                 if info.point == point and info.layer == at]
        where = f" of layer {at}" if at >= 0 else ""
        check(found, f"{self.path}: the trace has no {point}{where}")
        return found

    def _read(self, i: int, rows: NDArray[np.int64] | None = None) -> Elements:
        file, info = self._file_of[i], self.tensors[i]
        assert file is not None  # what a journal has is not kept
        return hdf5.read_tensor(file, info.path, info.dtype, rows)

    def _values(self, i: int, rows: NDArray[np.int64]) -> NDArray[Any]:
        info = self.tensors[i]
        check(info.kept, f"{self.path}: of {info.point} in pass {info.number} the digest alone was "
              "kept, not its numbers")
        elements = self._read(i, rows)
        return elements.bits if info.point in INTEGER_POINTS else elements.values()


def _import(name: str) -> types.ModuleType:
    import importlib
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LockstepError(f"{name} is not installed, which this is made with: pip install {name}"
                            ) from error


def _journal_of(path: pathlib.Path) -> pathlib.Path | None:
    """The journal of a trace, which has the passes of which no tensor was kept."""
    if path.suffix == ".journal":
        return path
    inside = path / "run.journal"
    return inside if path.is_dir() and inside.exists() else None


def _of_journal(tensor: JournalTensor, name: str) -> Any:
    """A column of the index."""
    if name == "pass":
        return tensor.number
    if name in ("axes", "path"):
        return AXES[tensor.point] if name == "axes" else ""
    return getattr(tensor if hasattr(tensor, name) else tensor.digest, name)


def _parts(path: pathlib.Path) -> list[pathlib.Path]:
    """The HDF5 files of a trace, in order."""
    if path.is_dir():
        found = sorted(path.glob("seg-*.h5"))
        check(found or _journal_of(path), f"{path} has no run.journal and no segments "
              "seg-000000.h5, ...: a trace was wanted")
        return found
    check(path.is_file(), f"{path} is not there: a trace X.h5, X.trace or X.journal was wanted")
    return [] if path.suffix == ".journal" else [path]


def _open(path: pathlib.Path) -> h5py.File:
    try:
        file = h5py.File(path)
    except OSError as error:
        raise LockstepError(f"{path} is no HDF5 file that can be read ({error}): a trace X.h5 or "
                            "X.trace was wanted") from error
    attributes = file.attrs
    check(attributes.get("format") == "lockstep", f"{path} is no trace: its root has no attribute "
          "format = lockstep")
    version = str(attributes.get("format_version"))
    check(version.startswith("2."), f"{path} is of format version {version}, 2.2 was wanted: write "
          "it anew")
    return file


def _column(group: h5py.Group, name: str) -> NDArray[Any]:
    data = group[name]
    return data.asstr()[()] if data.dtype.kind == "O" else data[()]


def _ragged(group: h5py.Group, name: str, edges: str) -> list[list[Any]]:
    """A flat column, cut where its edges say."""
    flat, ends = _column(group, name).tolist(), _column(group, edges).tolist()
    return [flat[a:b] for a, b in zip(ends, ends[1:])]


def _read_graph(group: h5py.Group) -> list[Node]:
    return [Node(point, int(layer), tuple(inputs)) for point, layer, inputs in zip(
        _column(group, "point"), _column(group, "layer"), _ragged(group, "input", "input_edges"))]


def _read_requests(group: h5py.Group) -> list[Request]:
    lists = [_ragged(group, name, f"{name}_edges")
             for name in ("prompt", "tokens", "forced", "argmax")]
    return [Request(int(number), prompt, tokens, forced, argmax, bool(sampled), name)
            for number, name, sampled, prompt, tokens, forced, argmax in zip(
                _column(group, "id"), _column(group, "name"), _column(group, "sampled"), *lists)]


def _read_passes(group: h5py.Group) -> list[PassRows]:
    columns = [_ragged(group, name, "row_edges")
               for name in ("request", "position", "token", "phase")]
    logits = _ragged(group, "logit_rows", "logit_row_edges")
    inherited: list[dict[int, list[int]]] = [{} for _ in logits]
    if "inherited_edges" in group:
        entering = _ragged(group, "inherited_request", "inherited_edges")
        tokens = iter(_ragged(group, "inherited_tokens", "inherited_token_edges"))
        inherited = [{request: next(tokens) for request in part} for part in entering]
    return [PassRows([Row(request, position, token, bool(phase))
                      for request, position, token, phase in zip(*parts)], rows, entries)
            for *parts, rows, entries in zip(*columns, logits, inherited)]


def _read_index(group: h5py.Group) -> Iterator[TensorInfo]:
    below = group["parts"] if "parts" in group else group  # version 2.0 had one group
    runs = zip(*(_ragged(below, f"run_{name}", "run_edges")
                 for name in ("request", "first", "count")))
    columns = (_column(group, name) for name in ("seq", "pass", "layer", "point", "dtype", "path"))
    for seq, number, layer, point, dtype, path, shape, parts in zip(
            *columns, _ragged(below, "shape", "shape_edges"), runs):
        rows = tuple((request, first + i) for request, first, count in zip(*parts)
                     for i in range(count))
        yield TensorInfo(int(seq), int(number), int(layer), point, dtype, tuple(shape), path, rows)
