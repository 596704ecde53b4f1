"""Runs as tests keep them, and how they become traces: by the Writer of the Python package."""
from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "traces/python"))
from lockstep import Request, Row, Writer, hdf5  # noqa: E402, F401
from lockstep.graph import Node, qwen_graph  # noqa: E402, F401
from lockstep.points import AXES, MODEL_POINTS, Place, place_order  # noqa: E402, F401

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclasses.dataclass
class Pass:
    """One call of the model: its rows, and the tensors that were seen."""

    rows: list[Row]
    logit_rows: list[int]
    tensors: dict[Place, torch.Tensor] = dataclasses.field(default_factory=dict)
    caches: dict[tuple[int, int], torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Trace:
    """A run: its passes and requests, and what it says of itself."""

    graph: list[Node]
    dtype: str
    passes: list[Pass]
    requests: list[Request]
    provenance: dict[str, str]
    schema: dict[str, str]


def write(path: pathlib.Path, trace: Trace) -> None:
    """The trace as a file, in the place of an older one, with every K and V that was read."""
    pathlib.Path(path).unlink(missing_ok=True)
    with Writer(path, graph=trace.graph, dtype=trace.dtype, schema=trace.schema,
                provenance=trace.provenance) as writer:
        writer.requests = trace.requests
        for run in trace.passes:
            writer.begin_pass([row.token for row in run.rows], [row.position for row in run.rows],
                              [row.request for row in run.rows], logit_rows=run.logit_rows,
                              decode=[row.decode for row in run.rows])
            caches = {(layer, "attn.kv") for layer, _ in run.caches}
            for layer, point in sorted(set(run.tensors) | caches, key=place_order):
                if point != "attn.kv":
                    tensor = run.tensors[layer, point]
                    some = point == "final.norm" and len(tensor) != len(run.rows)
                    writer.show(point, layer, tensor, rows=run.logit_rows if some else None)
                    continue
                for (of, request), tensor in sorted(run.caches.items()):
                    if of == layer:
                        writer.show_cache(layer, request, tensor)


def redeclare(path: pathlib.Path, schema: dict[str, str]) -> None:
    """Another text for where each point rounds, in a trace that has been written."""
    with hdf5.reopen(path) as file:
        file["provenance"].attrs["schema_json"] = json.dumps(schema)
    hdf5.seal(path, hdf5.SEAL_BYTES)
