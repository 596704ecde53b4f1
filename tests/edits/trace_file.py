"""Reads and writes the HDF5 layout of traces (traces/README.md), sealed.

A trace is written anew from its objects, so that everything in the file fits everything else
unless an edit wants it otherwise.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate, groupby
from pathlib import Path

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t
from numpy.typing import DTypeLike
from tensors import STORAGE, Digest, xxh3
from trace_model import Best, Label, Node, Pass, Request, Row, Tensor, Trace

SEAL_BYTES = 512
TEXT = h5py.string_dtype()
DIGEST_COLUMNS = [f.name for f in fields(Digest) if f.name != "exponents"]
DIGEST_TYPES = {"xxh3": np.uint64, **dict.fromkeys(
    ["n", "nan", "posinf", "neginf", "zeros", "subnormal", "absmax_at"], np.int64)}


def load(path: Path) -> Trace:
    """A trace of one file, or one segment of a trace that is a folder."""
    with h5py.File(path) as file:
        passes = _load_passes(file)
        attributes = {name: int(value) if isinstance(value, np.integer) else value
                      for name, value in file.attrs.items()}
        return Trace(attributes, _load_graph(file), dict(file["provenance"].attrs),
                     _load_requests(file), passes, "passes/inherited_edges" in file,
                     int(file["index/seq"][0]))


def save(trace: Trace, path: Path) -> None:
    """Writes and seals a new file."""
    path.unlink(missing_ok=True)
    with h5py.File(path, "w", libver=("v110", "v110"), userblock_size=SEAL_BYTES) as file:
        for name in ("graph", "provenance", "requests", "passes", "index", "logits", "tensors"):
            file.create_group(name)
        paths = _save_tensors(file, trace)
        _save_graph(file, trace)
        _save_requests(file, trace)
        _save_passes(file, trace)
        _save_index(file, trace, paths)
        _save_logits(file, trace)
        _save_summary(file, trace)
        for name, text in trace.provenance.items():
            file["provenance"].attrs[name] = text
        for name, value in trace.attributes.items():
            file.attrs[name] = value
        for change in trace.after:
            change(file)
    seal(path)


def seal(path: Path) -> None:
    """Puts a true seal on a closed file, over everything behind the seal."""
    data = np.fromfile(path, np.uint8)
    line = (f"lockstep trace: {data.size:016x} bytes, xxh3 from {SEAL_BYTES:016x} on "
            f"{xxh3(data[SEAL_BYTES:]):016x}\n")
    with path.open("r+b") as file:
        file.write(line.encode())


# Reading.

def _parts(flat: np.ndarray, edges: np.ndarray) -> list[list]:
    """The parts of a flat column that its edges divide."""
    whole = flat.tolist()
    return [whole[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]


def _load_graph(file: h5py.File) -> list[Node]:
    group = file["graph"]
    inputs = _parts(group["input"][:], group["input_edges"][:])
    return [Node(*node) for node in
            zip(group["point"].asstr()[:], group["layer"][:].tolist(), inputs, strict=True)]


def _load_requests(file: h5py.File) -> list[Request]:
    group = file["requests"]
    lists = [_parts(group[name][:], group[name + "_edges"][:])
             for name in ("prompt", "forced", "tokens", "argmax")]
    return [Request(int(number), name, int(sampled), *of) for number, name, sampled, *of in
            zip(group["id"], group["name"].asstr()[:], group["sampled"], *lists, strict=True)]


def _load_tensors(file: h5py.File) -> list[Tensor]:
    index = file["index"]
    texts = {name: index[name].asstr()[:] for name in ("point", "dtype", "axes", "path")}
    ragged = index["parts"]
    shapes = _parts(ragged["shape"][:], ragged["shape_edges"][:])
    runs = [_parts(ragged["run_" + name][:], ragged["run_edges"][:])
            for name in ("request", "first", "count")]
    hashes = _parts(ragged["row_xxh3"][:], ragged["row_xxh3_edges"][:])
    bins = _parts(ragged["exponent"][:], ragged["exponent_edges"][:])
    counts = _parts(ragged["exponent_count"][:], ragged["exponent_edges"][:])
    digests = list(zip(*(index[name][:].tolist() for name in DIGEST_COLUMNS), strict=True))
    tensors = []
    for i, layer in enumerate(index["layer"][:].tolist()):
        rows = [(request, first + j)
                for request, first, count in zip(*(run[i] for run in runs), strict=True)
                for j in range(count)]
        digest = Digest(**dict(zip(DIGEST_COLUMNS, digests[i], strict=True)),
                        exponents=dict(zip(bins[i], counts[i], strict=True)))
        dtype, path = texts["dtype"][i], texts["path"][i]
        tensors.append(Tensor(texts["point"][i], layer, dtype, texts["axes"][i],
                              tuple(shapes[i]), rows, digest, hashes[i],
                              _load_bits(file, path, dtype) if path else None))
    return tensors


def _load_bits(file: h5py.File, path: str, dtype: str) -> np.ndarray:
    dataset = file[path].id
    bits = np.empty(dataset.shape, STORAGE[dtype])
    dataset.read(h5s.ALL, h5s.ALL, bits, mtype=dataset.get_type())
    return bits


def _load_best(file: h5py.File) -> list[Best]:
    columns = [file["logits"][name][:].tolist()
               for name in ("request", "position", "chosen", "margin", "ids", "values")]
    return [Best(*row) for row in zip(*columns, strict=True)]


def _load_passes(file: h5py.File) -> list[Pass]:
    group = file["passes"]
    rows = [Row(*row) for row in zip(*(group[name][:].tolist() for name in (
        "request", "position", "token", "slot", "phase")), strict=True)]
    tables = list(zip(group["table_request"][:].tolist(),
                      _parts(group["pages"][:], group["page_edges"][:]), strict=True))
    numbers = group["number"][:].tolist()
    inherited, heirs = [], np.zeros(len(numbers) + 1, int)
    if "inherited_edges" in group:
        inherited = list(zip(group["inherited_request"][:].tolist(),
                             _parts(group["inherited_tokens"][:],
                                    group["inherited_token_edges"][:]), strict=True))
        heirs = group["inherited_edges"][:]
    logit_rows = _parts(group["logit_rows"][:], group["logit_row_edges"][:])
    tensors, best = _load_tensors(file), _load_best(file)
    parts: list[tuple[list, np.ndarray]] = [
        (rows, group["row_edges"][:]), (tables, group["table_edges"][:]), (inherited, heirs),
        (tensors, group["tensor_edges"][:]), (best, file["logits/edges"][:])]
    passes = []
    for i, number in enumerate(numbers):
        own = [of[edges[i]:edges[i + 1]] for of, edges in parts]
        passes.append(Pass(number, own[0], logit_rows[i], *own[1:]))
    return passes


# Writing.

def _column(trace: Trace, group: h5py.Group, name: str, values: list, dtype: DTypeLike) -> None:
    """One column. `trace.columns` are options of h5py, of which texts take no filter."""
    options = trace.columns if dtype is not TEXT and len(values) > 0 else {}
    group.create_dataset(name, data=np.array(values, dtype), **options)


def _flat(trace: Trace, group: h5py.Group, names: dict[str, DTypeLike], edges: str | None,
          parts: Sequence[Sequence[tuple]]) -> None:
    """Parts of tuples as flat columns, one for each name, and the column of their edges."""
    flat = [one for part in parts for one in part]
    for i, (name, dtype) in enumerate(names.items()):
        _column(trace, group, name, [one[i] for one in flat], dtype)
    if edges is not None:
        _column(trace, group, edges, [0, *accumulate(len(part) for part in parts)], np.int64)


def _save_graph(file: h5py.File, trace: Trace) -> None:
    group = file["graph"]
    _column(trace, group, "point", [node.point for node in trace.graph], TEXT)
    _column(trace, group, "layer", [node.layer for node in trace.graph], np.int32)
    _flat(trace, group, {"input": np.int32}, "input_edges",
          [[(number,) for number in node.inputs] for node in trace.graph])


def _save_requests(file: h5py.File, trace: Trace) -> None:
    group = file["requests"]
    _flat(trace, group, {"id": np.int32, "name": TEXT, "sampled": np.int32}, None,
          [[(one.id, one.name, one.sampled)] for one in trace.requests])
    for name in ("prompt", "forced", "tokens", "argmax"):
        _flat(trace, group, {name: np.int32}, name + "_edges",
              [[(token,) for token in getattr(one, name)] for one in trace.requests])


def _save_passes(file: h5py.File, trace: Trace) -> None:
    group, passes = file["passes"], trace.passes
    _column(trace, group, "number", [one.number for one in passes], np.int32)
    _flat(trace, group, {"pass": np.int32, "request": np.int32, "position": np.int32,
                         "token": np.int32, "slot": np.int64, "phase": np.uint8}, "row_edges",
          [[(one.number, row.request, row.position, row.token, row.slot, row.phase)
            for row in one.rows] for one in passes])
    _flat(trace, group, {"logit_rows": np.int32}, "logit_row_edges",
          [[(row,) for row in one.logit_rows] for one in passes])
    _flat(trace, group, {"table_pass": np.int32, "table_request": np.int32}, "table_edges",
          [[(one.number, request) for request, _ in one.pages] for one in passes])
    _flat(trace, group, {"pages": np.int32}, "page_edges",
          [[(page,) for page in pages] for one in passes for _, pages in one.pages])
    _column(trace, group, "tensor_edges",
            [0, *accumulate(len(one.tensors) for one in passes)], np.int64)
    if trace.inherited_known:
        _flat(trace, group, {"inherited_request": np.int32}, "inherited_edges",
              [[(request,) for request, _ in one.inherited] for one in passes])
        _flat(trace, group, {"inherited_tokens": np.int32}, "inherited_token_edges",
              [[(token,) for token in tokens] for one in passes for _, tokens in one.inherited])


def _runs(rows: list[Label]) -> list[tuple[int, int, int]]:
    """Rows as runs of consecutive positions of a request."""
    groups = groupby(enumerate(rows), key=lambda at: (at[1][0], at[1][1] - at[0]))
    runs = [[label for _, label in group] for _, group in groups]
    return [(*run[0], len(run)) for run in runs]


def _save_index(file: h5py.File, trace: Trace, paths: list[str]) -> None:
    group = file["index"]
    tensors = [(one.number, tensor) for one in trace.passes for tensor in one.tensors]
    _flat(trace, group, {"seq": np.int64, "pass": np.int32, "layer": np.int32, "point": TEXT,
                         "dtype": TEXT, "axes": TEXT, "path": TEXT}, None,
          [[(trace.first_seq + i, number, t.layer, t.point, t.dtype, t.axes, path)
            for i, ((number, t), path) in enumerate(zip(tensors, paths, strict=True))]])
    _flat(trace, group, {name: DIGEST_TYPES.get(name, np.float64) for name in DIGEST_COLUMNS},
          None, [[tuple(getattr(t.digest, name) for name in DIGEST_COLUMNS) for _, t in tensors]])
    ragged = group.create_group("parts")
    _flat(trace, ragged, {"shape": np.int64}, "shape_edges",
          [[(extent,) for extent in t.shape] for _, t in tensors])
    _flat(trace, ragged, {"exponent": np.uint8, "exponent_count": np.uint32}, "exponent_edges",
          [list(t.digest.exponents.items()) for _, t in tensors])
    _flat(trace, ragged, {"run_request": np.int32, "run_first": np.int32, "run_count": np.int32},
          "run_edges", [_runs(t.rows) for _, t in tensors])
    _flat(trace, ragged, {"row_xxh3": np.uint64}, "row_xxh3_edges",
          [[(one,) for one in t.row_xxh3] for _, t in tensors])
    group["seq"].make_scale("seq")
    for name in ("pass", "layer", "point", "dtype", "axes", "path", *DIGEST_COLUMNS):
        group[name].dims[0].attach_scale(group["seq"])


def _save_logits(file: h5py.File, trace: Trace) -> None:
    group = file["logits"]
    _flat(trace, group, {"pass": np.int32, "request": np.int32, "position": np.int32,
                         "chosen": np.int32, "margin": np.float64}, "edges",
          [[(one.number, best.request, best.position, best.chosen, best.margin)
            for best in one.best] for one in trace.passes])
    rows = [best for one in trace.passes for best in one.best]
    _column(trace, group, "ids", [best.ids for best in rows], np.int32)
    _column(trace, group, "values", [best.values for best in rows], np.float64)


def _path_of(number: int, tensor: Tensor) -> str:
    folder = "model" if tensor.layer < 0 else f"layer{tensor.layer:03}"
    request = f".request{tensor.rows[0][0]:06}" if tensor.is_cache and tensor.rows else ""
    return f"/tensors/pass{number:06}/{folder}/{tensor.point}{request}"


def _stored_type(dtype: str) -> h5t.TypeID:
    """The HDF5 type of a tensor; 16-bit floats are floats of their own fields."""
    known = {"fp32": h5t.IEEE_F32LE, "fp64": h5t.IEEE_F64LE, "int32": h5t.STD_I32LE,
             "int64": h5t.STD_I64LE, "uint8": h5t.STD_U8LE}
    if dtype in known:
        return known[dtype]
    mantissa, bias = (7, 127) if dtype == "bf16" else (10, 15)
    half = h5t.IEEE_F32LE.copy()
    half.set_fields(15, mantissa, 15 - mantissa, 0, mantissa)
    half.set_size(2)
    half.set_ebias(bias)
    return half


def _save_tensors(file: h5py.File, trace: Trace) -> list[str]:
    """Writes what has bits; the path of each tensor, "" where there are none."""
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    text = h5t.py_create(TEXT, logical=True)
    scalar = h5s.create(h5s.SCALAR)
    paths: list[str] = []
    taken: set[str] = set()
    numbered = [(one.number, tensor) for one in trace.passes for tensor in one.tensors]
    for seq, (number, tensor) in enumerate(numbered, trace.first_seq):
        path = "" if tensor.bits is None else _path_of(number, tensor)
        while path in taken:
            path += ".twin"
        paths.append(path)
        if tensor.bits is None:
            continue
        taken.add(path)
        stored = _stored_type(tensor.dtype)
        dataset = h5d.create(file.id, path.encode(), stored, h5s.create_simple(tensor.bits.shape),
                             None, links)
        dataset.write(h5s.ALL, h5s.ALL, tensor.bits, mtype=stored)
        h5a.create(dataset, b"seq", h5t.STD_I64LE, scalar).write(np.array(seq, np.int64))
        for name, value in ((b"dtype", tensor.dtype), (b"axes", tensor.axes)):
            h5a.create(dataset, name, text, scalar).write(np.array(value, TEXT))
    return paths


def _save_summary(file: h5py.File, trace: Trace) -> None:
    """The cube that viewers draw: [pass, layer, point]."""
    points = list(dict.fromkeys(t.point for one in trace.passes for t in one.tensors))
    layers = list(range(-1, trace.layers))
    shape = (len(trace.passes), len(layers), len(points))
    cells: dict[tuple[int, int, int], list[Digest]] = {}
    for i, one in enumerate(trace.passes):
        for t in one.tensors:
            if t.digest.nan >= 0 and t.layer + 1 < len(layers):
                place = (i, t.layer + 1, points.index(t.point))
                cells.setdefault(place, []).append(t.digest)
    cubes = {name: np.full(shape, np.nan) for name in ("rms", "absmax", "mean", "nonfinite")}
    for place, digests in cells.items():
        bad = sum(d.nan + d.posinf + d.neginf for d in digests)
        finite = max(sum(d.n for d in digests) - bad, 1)
        cubes["rms"][place] = np.sqrt(sum(d.sum_squares for d in digests) / finite)
        cubes["absmax"][place] = max(d.absmax for d in digests)
        cubes["mean"][place] = sum(d.mean * (d.n - d.nan - d.posinf - d.neginf)
                                   for d in digests) / finite
        cubes["nonfinite"][place] = bad
    group = file.create_group("summary")
    scales = {"pass": np.array([one.number for one in trace.passes], np.int32),
              "layer": np.array(layers, np.int32), "point": np.array(points, TEXT)}
    for name, scale in scales.items():
        group[name] = scale
        group[name].make_scale(name)
    for name, cube in cubes.items():
        group[name] = cube
        for axis, of in enumerate(scales):
            group[name].dims[axis].attach_scale(group[of])
    group.attrs.update({"NX_class": "NXdata", "signal": "rms", "axes": list(scales)})
