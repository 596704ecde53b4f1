"""Writes what was seen of a run as a Lockstep trace: one HDF5 file, as traces/README.md says.

Independent of Lockstep's own writer: it has been written from that text alone.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import h5py
import numpy as np
import torch
import xxhash

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from qwen_graph import Node, qwen_graph  # noqa: E402, F401

# Every point of probes/points.h in graph order, with what its axes are.
AXES = {
    "embed": "token, hidden",
    "attn.norm": "token, hidden",
    "attn.q": "token, head, dim",
    "attn.k": "token, kv head, dim",
    "attn.v": "token, kv head, dim",
    "attn.q_norm": "token, head, dim",
    "attn.k_norm": "token, kv head, dim",
    "attn.q_rope": "token, head, dim",
    "attn.k_rope": "token, kv head, dim",
    "attn.kv": "position, k|v, kv head, dim",
    "attn.out": "token, head, dim",
    "attn.o": "token, hidden",
    "attn.residual": "token, hidden",
    "mlp.norm": "token, hidden",
    "mlp.gate": "token, intermediate",
    "mlp.up": "token, intermediate",
    "mlp.act": "token, intermediate",
    "mlp.down": "token, hidden",
    "mlp.router": "token, expert",
    "mlp.experts": "token, choice",
    "mlp.weights": "token, choice",
    "mlp.expert_gate": "token, choice, intermediate",
    "mlp.expert_up": "token, choice, intermediate",
    "mlp.expert_act": "token, choice, intermediate",
    "mlp.expert_down": "token, choice, hidden",
    "mlp.combine": "token, hidden",
    "mlp.residual": "token, hidden",
    "final.norm": "token, hidden",
    "logits": "token, vocab",
    "token": "token",
}
ORDER = {point: i for i, point in enumerate(AXES)}
MODEL_POINTS = ("embed", "final.norm", "logits", "token")
DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32",
               torch.int32: "int32"}
KEPT_LOGITS = 8
SEAL = 512  # bytes of the user block

Place = tuple[int, str]  # layer (-1: not of a layer) and point


@dataclasses.dataclass(frozen=True)
class Row:
    """A token that a pass computed."""

    request: int
    position: int
    token: int
    decode: bool


@dataclasses.dataclass
class Pass:
    """One call of the model: its rows, and the tensors that were seen."""

    rows: list[Row]
    logit_rows: list[int]
    tensors: dict[Place, torch.Tensor] = dataclasses.field(default_factory=dict)
    caches: dict[tuple[int, int], torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Request:
    """What a request was given, what it was fed in decode, and what was most likely."""

    prompt: list[int]
    tokens: list[int] = dataclasses.field(default_factory=list)
    forced: list[int] = dataclasses.field(default_factory=list)
    argmax: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Trace:
    """A run: its passes and requests, and what it says of itself."""

    graph: list[Node]
    dtype: str
    passes: list[Pass]
    requests: list[Request]
    provenance: dict[str, str]
    selection: str = ""


@dataclasses.dataclass
class Entry:
    """A tensor of the index, with whose rows it holds: runs of request, first position, count."""

    number: int
    layer: int
    point: str
    tensor: torch.Tensor
    runs: list[tuple[int, int, int]]
    path: str


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """Its elements as numpy holds them; of bf16, which numpy lacks, the 16 bits."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def bf16_type() -> h5py.h5t.TypeID:
    """The HDF5 float that has the bits of a bf16."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_precision(16)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


BF16 = bf16_type()


def write_tensor(file: h5py.File, path: str, tensor: torch.Tensor) -> h5py.Dataset:
    """The rows as they are, contiguous; h5py can make no data set of bf16 by itself."""
    bits = bits_of(tensor)
    kind = BF16 if tensor.dtype == torch.bfloat16 else h5py.h5t.py_create(bits.dtype)
    between = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    between.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(bits.shape)
    made = h5py.h5d.create(file.id, path.encode(), kind, space, lcpl=between)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=kind)
    return h5py.Dataset(made)


def runs_of(rows: list[Row]) -> list[tuple[int, int, int]]:
    """The rows as runs of consecutive positions of a request."""
    runs: list[tuple[int, int, int]] = []
    for row in rows:
        if runs and runs[-1][0] == row.request and sum(runs[-1][1:]) == row.position:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((row.request, row.position, 1))
    return runs


def place_order(place: Place) -> tuple[int, int, int]:
    """Sorts places as the model runs them."""
    layer, point = place
    stage = 1 if layer >= 0 else 0 if point == "embed" else 2
    return stage, layer, ORDER[point]


def entries_of(number: int, run: Pass) -> list[Entry]:
    """The tensors of a pass in execution order."""
    found: list[Entry] = []
    caches = {layer for layer, _ in run.caches}
    places = set(run.tensors) | {(layer, "attn.kv") for layer in caches}
    logit_rows = [run.rows[i] for i in run.logit_rows]
    for layer, point in sorted(places, key=place_order):
        part = "model" if layer < 0 else f"layer{layer:03d}"
        path = f"/tensors/pass{number:06d}/{part}/{point}"
        if point != "attn.kv":
            tensor = run.tensors[layer, point]
            rows = logit_rows if point in ("logits", "token") else run.rows
            if point == "final.norm" and len(tensor) != len(run.rows):
                rows = logit_rows
            found.append(Entry(number, layer, point, tensor, runs_of(rows), path))
            continue
        for (of, request), tensor in sorted(run.caches.items()):
            if of == layer:
                runs = [(request, 0, len(tensor))]
                name = f"{path}.request{request:06d}"
                found.append(Entry(number, layer, point, tensor, runs, name))
    return found


def xxh3(raw: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(raw)


def row_hashes(tensor: torch.Tensor) -> np.ndarray:
    """A hash of the bytes of each row."""
    bits = bits_of(tensor)
    return np.array([xxh3(row.tobytes()) for row in bits], np.uint64)


NUMBERS = ("min", "max", "absmax", "mean", "m2", "rms", "sum_abs", "sum_squares")
COUNTS = ("nan", "posinf", "neginf", "zeros", "subnormal", "absmax_at")


def hash_digest(hashes: np.ndarray) -> dict[str, float]:
    """Of attn.kv: hashes alone, and what else a digest has says that it is not known."""
    return ({"xxh3": xxh3(hashes.astype("<u8").tobytes())} | dict.fromkeys(COUNTS, -1)
            | dict.fromkeys(NUMBERS, float("nan")))


def number_digest(tensor: torch.Tensor) -> dict[str, float]:
    """Counts, range and moments of the finite numbers of a tensor."""
    bits = bits_of(tensor)
    values = tensor.to(torch.float32).numpy().ravel()
    wide = values[np.isfinite(values)].astype(np.float64)
    some = wide if wide.size else np.zeros(1)
    tiny = torch.finfo(tensor.dtype).tiny if tensor.dtype.is_floating_point else 0
    digest = {
        "xxh3": xxh3(bits.tobytes()),
        "nan": int(np.isnan(values).sum()),
        "posinf": int(np.isposinf(values).sum()),
        "neginf": int(np.isneginf(values).sum()),
        "zeros": int((values == 0).sum()),
        "subnormal": int(((np.abs(values) < tiny) & (values != 0)).sum()),
        "absmax_at": int(np.argmax(np.nan_to_num(np.abs(values), nan=-1, posinf=-1))),
        "min": some.min(), "max": some.max(), "absmax": np.abs(some).max(), "mean": some.mean(),
        "m2": ((wide - some.mean()) ** 2).sum(), "rms": np.sqrt((some ** 2).mean()),
        "sum_abs": np.abs(wide).sum(), "sum_squares": (wide ** 2).sum(),
    }
    return digest


class Columns:
    """Columns that grow a row at a time; a list makes a flat column and its edges."""

    def __init__(self, types: dict[str, object], lists: dict[str, object]) -> None:
        self.types, self.lists = types, lists
        self.flat: dict[str, list] = {name: [] for name in types | lists}
        self.edges: dict[str, list[int]] = {}

    def add(self, values: dict[str, object]) -> None:
        for name in self.types:
            self.flat[name].append(values[name])

    def add_parts(self, edges: str, values: dict[str, list]) -> None:
        """Values of one part, all of the same length, whose edges are so named."""
        for name, part in values.items():
            self.flat[name] += part
        ends = self.edges.setdefault(edges, [0])
        ends.append(ends[-1] + len(part))

    def write(self, group: h5py.Group) -> None:
        for name, kind in (self.types | self.lists).items():
            values = np.array(self.flat[name], dtype=object if kind is TEXT else kind)
            group.create_dataset(name, data=values, dtype=kind)
        for name, ends in self.edges.items():
            group.create_dataset(name, data=np.array(ends, np.int64))


TEXT = h5py.string_dtype()


def index_columns() -> Columns:
    types = {"seq": "i8", "pass": "i4", "layer": "i4", "point": TEXT, "dtype": TEXT, "axes": TEXT,
             "path": TEXT, "xxh3": "u8", "n": "i8"}
    types |= dict.fromkeys(COUNTS, "i8") | dict.fromkeys(NUMBERS, "f8")
    lists = {"shape": "i8", "exponent": "u1", "exponent_count": "u4", "run_request": "i4",
             "run_first": "i4", "run_count": "i4", "row_xxh3": "u8"}
    return Columns(types, lists)


def add_entry(index: Columns, seq: int, entry: Entry) -> dict[str, float]:
    """A row of the index; returns the digest."""
    hashes = row_hashes(entry.tensor)
    cache = entry.point == "attn.kv"
    digest = hash_digest(hashes) if cache else number_digest(entry.tensor)
    index.add(digest | {
        "seq": seq, "pass": entry.number, "layer": entry.layer, "point": entry.point,
        "dtype": DTYPE_NAMES[entry.tensor.dtype], "axes": AXES[entry.point], "path": entry.path,
        "n": entry.tensor.numel()})
    index.add_parts("shape_edges", {"shape": list(entry.tensor.shape)})
    bins, counts = [], []
    if not cache:
        values = entry.tensor.to(torch.float32).numpy().ravel().view(np.uint32)
        bins, counts = np.unique((values >> 23) & 0xFF, return_counts=True)
    index.add_parts("exponent_edges", {"exponent": list(bins), "exponent_count": list(counts)})
    requests, firsts, counts = zip(*entry.runs)
    index.add_parts("run_edges", {"run_request": list(requests), "run_first": list(firsts),
                                  "run_count": list(counts)})
    index.add_parts("row_xxh3_edges", {"row_xxh3": list(hashes)})
    return digest


def write_tensors(file: h5py.File, trace: Trace) -> None:
    """/tensors, /index and /summary."""
    index, summary = index_columns(), []
    seq = 0
    for number, run in enumerate(trace.passes):
        for entry in entries_of(number, run):
            digest = add_entry(index, seq, entry)
            data = write_tensor(file, entry.path, entry.tensor)
            data.attrs["seq"] = seq
            data.attrs["dtype"] = DTYPE_NAMES[entry.tensor.dtype]
            data.attrs["axes"] = AXES[entry.point]
            nonfinite = digest["nan"] + digest["posinf"] + digest["neginf"]
            numbers = digest | {"nonfinite": float("nan") if nonfinite < 0 else nonfinite}
            summary.append((number, entry.layer + 1, ORDER[entry.point], numbers))
            seq += 1
    group = file.create_group("index")
    index.write(group)
    group["seq"].make_scale("seq")
    for name, column in group.items():
        if name != "seq" and column.shape == group["seq"].shape:
            column.dims[0].attach_scale(group["seq"])
    write_summary(file.create_group("summary"), trace, summary)


def write_summary(group: h5py.Group, trace: Trace, rows: list[tuple]) -> None:
    group.attrs.update({"NX_class": "NXdata", "signal": "rms"})
    group.attrs.create("axes", ["pass", "layer", "point"], dtype=TEXT)
    layers = 1 + max(node.layer for node in trace.graph)
    scales = {"pass": np.arange(len(trace.passes), dtype="i4"),
              "layer": np.arange(-1, layers, dtype="i4"),
              "point": np.array(list(AXES), dtype=object)}
    for name, values in scales.items():
        kind = TEXT if name == "point" else values.dtype
        group.create_dataset(name, data=values, dtype=kind).make_scale(name)
    shape = tuple(len(values) for values in scales.values())
    for signal in ("rms", "absmax", "mean", "nonfinite"):
        cube = np.full(shape, np.nan)
        for number, layer, point, digest in rows:
            cube[number, layer, point] = digest[signal]
        data = group.create_dataset(signal, data=cube)
        for axis, name in enumerate(scales):
            data.dims[axis].attach_scale(group[name])


def write_passes(group: h5py.Group, trace: Trace) -> None:
    """The rows of each pass. There are no pages: a request's positions follow each other."""
    passes = Columns({"number": "i4"}, {
        "pass": "i4", "request": "i4", "position": "i4", "slot": "i8", "phase": "u1",
        "token": "i4", "logit_rows": "i4", "table_pass": "i4", "table_request": "i4"})
    room = 1 + max(row.position for run in trace.passes for row in run.rows)
    for number, run in enumerate(trace.passes):
        passes.add({"number": number})
        passes.add_parts("row_edges", {
            "pass": [number] * len(run.rows),
            "request": [row.request for row in run.rows],
            "position": [row.position for row in run.rows],
            "slot": [row.request * room + row.position for row in run.rows],
            "phase": [int(row.decode) for row in run.rows],
            "token": [row.token for row in run.rows]})
        passes.add_parts("logit_row_edges", {"logit_rows": list(run.logit_rows)})
        passes.add_parts("table_edges", {"table_pass": [], "table_request": []})
    passes.write(group)
    ends = np.cumsum([0] + [len(entries_of(n, run)) for n, run in enumerate(trace.passes)])
    group.create_dataset("tensor_edges", data=ends.astype("i8"))
    group.create_dataset("pages", data=np.zeros(0, "i4"))
    group.create_dataset("page_edges", data=np.zeros(1, "i8"))


def write_requests(group: h5py.Group, requests: list[Request]) -> None:
    columns = Columns({"id": "i4", "name": TEXT, "sampled": "i4"},
                      dict.fromkeys(("prompt", "forced", "tokens", "argmax"), "i4"))
    for number, request in enumerate(requests):
        columns.add({"id": number, "name": f"request {number}", "sampled": 0})
        for name in ("prompt", "forced", "tokens", "argmax"):
            columns.add_parts(name + "_edges", {name: getattr(request, name)})
    columns.write(group)


def write_logits(group: h5py.Group, trace: Trace) -> None:
    columns = Columns({"pass": "i4", "request": "i4", "position": "i4", "chosen": "i4",
                       "margin": "f8"}, {})
    ids, values, edges = [], [], [0]
    for number, run in enumerate(trace.passes):
        edges.append(edges[-1] + len(run.logit_rows))
        logits = run.tensors.get((-1, "logits"))
        tokens = run.tensors.get((-1, "token"))
        if logits is None or tokens is None:
            continue
        for at, scores, token in zip(run.logit_rows, logits.double(), tokens):
            best = torch.sort(scores, descending=True, stable=True)
            ids.append(best.indices[:KEPT_LOGITS].numpy())
            values.append(best.values[:KEPT_LOGITS].numpy())
            columns.add({"pass": number, "request": run.rows[at].request,
                         "position": run.rows[at].position, "chosen": int(token),
                         "margin": values[-1][0] - values[-1][1]})
    columns.write(group)
    group.create_dataset("edges", data=np.array(edges, "i8"))
    group.create_dataset("ids", data=np.array(ids, "i4").reshape(-1, KEPT_LOGITS))
    group.create_dataset("values", data=np.array(values, "f8").reshape(-1, KEPT_LOGITS))


def write_graph(group: h5py.Group, graph: list[Node]) -> None:
    group.create_dataset("point", data=[node.point for node in graph], dtype=h5py.string_dtype())
    group.create_dataset("layer", data=np.array([node.layer for node in graph], "i4"))
    edges = np.cumsum([0] + [len(node.inputs) for node in graph])
    group.create_dataset("input_edges", data=edges.astype("i8"))
    flat = [number for node in graph for number in node.inputs]
    group.create_dataset("input", data=np.array(flat, "i4"))


def write(path: pathlib.Path, trace: Trace) -> None:
    """Writes the file whole; `complete` comes last, and then the seal in the user block."""
    run_id = f"{xxh3(json.dumps(trace.provenance, sort_keys=True).encode()):016x}"
    with h5py.File(path, "w", libver=("v110", "v110"), userblock_size=SEAL) as file:
        file.attrs.update({
            "format": "lockstep", "format_version": "2.0", "level": "full", "run_id": run_id,
            "rank": 0, "world_size": 1, "dtype": trace.dtype,
            "selection": trace.selection, "default": "summary", "NX_class": "NXroot"})
        write_graph(file.create_group("graph"), trace.graph)
        file.create_group("provenance").attrs.update(trace.provenance)
        write_requests(file.create_group("requests"), trace.requests)
        write_passes(file.create_group("passes"), trace)
        write_logits(file.create_group("logits"), trace)
        write_tensors(file, trace)
        file.attrs["complete"] = 1
    seal(path)


def seal(path: pathlib.Path) -> None:
    """The line before the HDF5 file: its size, and a hash of what follows."""
    raw = path.read_bytes()
    line = (f"lockstep trace: {len(raw):016x} bytes, "
            f"xxh3 from {SEAL:016x} on {xxh3(raw[SEAL:]):016x}\n")
    with open(path, "r+b") as file:
        file.write(line.encode().ljust(SEAL, b"\0"))


def redeclare(path: pathlib.Path, schema: dict[str, str]) -> None:
    """Another text for where each point rounds, in a trace that has been written."""
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        file["provenance"].attrs["schema_json"] = json.dumps(schema)
    seal(path)
