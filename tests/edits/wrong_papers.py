"""Wrong papers: the index, what is declared of run, model and rounding, and what is lacking."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from registry import CLEAN, DIVERGED, DOUBT, Place, add, edit, edit_files
from tensors import STORAGE
from trace_model import Node, Pass, Tensor, Trace, clone_tensor, qwen_graph
from wrong_values import bits, repeat_of


def lies(name: str, change: Callable[[Tensor], None], quick: bool = False) -> None:
    """The index says something of a tensor that is there, and it is not so."""
    def applied(trace: Trace) -> None:
        change(repeat_of(trace)[1].find("mlp.down", 2))
    add(f"index-{name}", "greedy", DOUBT, "the index and the tensor contradict each other",
        applied, quick)


def set_digest(column: str, value: object) -> Callable[[Tensor], None]:
    return lambda tensor: setattr(tensor.digest, column, value)


lies("max-other", set_digest("max", 1e6), True)
lies("min-other", set_digest("min", -1e6))
lies("absmax-other", set_digest("absmax", 1e6))
lies("absmax-at-other", set_digest("absmax_at", 0))
lies("mean-other", set_digest("mean", 3.0))
lies("mean-nan", set_digest("mean", float("nan")))
lies("rms-other", set_digest("rms", 3.0))
lies("m2-other", set_digest("m2", 3.0))
lies("nan-count-other", set_digest("nan", 7))
lies("nan-count-below-zero", set_digest("nan", -7))
lies("inf-count-other", set_digest("posinf", 7))
lies("zeros-other", set_digest("zeros", 7))
lies("n-other", set_digest("n", 7), True)
lies("n-huge", set_digest("n", 2**62))
lies("exponents-other", set_digest("exponents", {0: 1, 255: 3}))
lies("xxh3-other", set_digest("xxh3", 1))


# Tensors that are lacking, or too many.

@edit("greedy", expect=DOUBT)
def one_tensor_is_a_digest(trace: Trace) -> None:
    """Of one tensor only the digest was kept: neither it nor what it feeds can be judged."""
    repeat_of(trace)[1].find("attn.q", 2).bits = None


@edit("greedy", expect=DOUBT)
def a_point_is_digests(trace: Trace) -> None:
    """Of one point only digests were kept, in all passes and layers."""
    for one in trace.passes:
        for tensor in one.tensors:
            if tensor.point == "mlp.up":
                tensor.bits = None


@edit("greedy", expect=DOUBT)
def last_point_is_digests(trace: Trace) -> None:
    """Of the tensors of tokens, which nothing is computed from, only digests were kept."""
    for one in trace.passes:
        one.find("token", -1).bits = None


@edit("greedy", expect=DOUBT, quick=True)
def everything_is_digests(trace: Trace) -> None:
    """Only digests were kept."""
    for one in trace.passes:
        for tensor in one.tensors:
            tensor.bits = None


def drop(one: Pass, point: str, layer: int | None) -> None:
    one.tensors = [t for t in one.tensors
                   if t.point != point or (layer is not None and t.layer != layer)]


def lacks(point: str, quick: bool = False) -> None:
    layer = -1 if point in ("embed", "final.norm", "logits", "token") else 2

    def in_a_pass(trace: Trace) -> Place:
        one = repeat_of(trace)[1]
        drop(one, point, layer)
        return Place(one.number, layer, point)

    def in_all(trace: Trace) -> None:
        for one in trace.passes:
            drop(one, point, None)

    def selected(trace: Trace) -> None:
        in_a_pass(trace)
        trace.attributes["selection"] = "--layers 0-1,3-5"
    add(f"dropped-in-a-pass@{point}", "greedy", DIVERGED, """a tensor is missed that other passes
        have, and nothing says that the trace was not to hold it""", in_a_pass, quick)
    if point in ("logits", "token"):  # no recorded op reads them
        add(f"dropped-in-all@{point}", "greedy", DOUBT, """a point that no pass shows was not
            recorded, and what was not judged is not clean""", in_all, quick)
    else:
        add(f"dropped-in-all@{point}", "greedy", CLEAN, """a point that no pass shows was not
            recorded, and is judged with the op that reads it""", in_all, quick)
    add(f"dropped-and-not-selected@{point}", "greedy", DOUBT, """a tensor is missed, and the
        selection says that the trace was to hold some alone""", selected)


for dropped in ("embed", "attn.q", "attn.v", "attn.k_rope", "attn.kv", "attn.out", "attn.residual",
                "mlp.act", "mlp.residual", "final.norm", "logits", "token"):
    lacks(dropped, dropped == "attn.q")


@edit("greedy", expect=DIVERGED)
def a_layer_dropped_in_a_pass(trace: Trace) -> Place:
    """All tensors of one layer are missed in one pass."""
    one = repeat_of(trace)[1]
    one.tensors = [t for t in one.tensors if t.layer != 2]
    return Place(one.number, 2, "attn.norm")


@edit("greedy", expect=DIVERGED)
def a_layer_dropped_in_all(trace: Trace) -> Place:
    """The last layer's tensors are in no pass, where those of other layers are."""
    last = trace.layers - 1
    for one in trace.passes:
        one.tensors = [t for t in one.tensors if t.layer != last]
    return Place(0, last, "attn.norm")


@edit("greedy", expect=DIVERGED)
def rows_dropped(trace: Trace) -> Place:
    """A tensor lacks the row of one request of its pass."""
    one = repeat_of(trace)[1]
    one.find("mlp.act", 2).take([0])
    return Place(one.number, 2, "mlp.act")


@edit("greedy", expect=DIVERGED)
def all_rows_dropped(trace: Trace) -> Place:
    """A tensor has no row at all."""
    one = repeat_of(trace)[1]
    one.find("mlp.act", 2).take([])
    return Place(one.number, 2, "mlp.act")


@edit("greedy", expect=None)
def row_hashes_left_out(trace: Trace) -> None:
    """A tensor that was kept has no hashes of its rows, which the reader does not mind."""
    repeat_of(trace)[1].find("mlp.act", 2).row_xxh3 = []


@edit("greedy", expect=DIVERGED)
def rows_labelled_otherwise(trace: Trace) -> Place:
    """Two rows of a tensor say that they are each other's."""
    one = repeat_of(trace)[1]
    tensor = one.find("mlp.act", 2)
    tensor.rows = [tensor.rows[1], tensor.rows[0], *tensor.rows[2:]]
    return Place(one.number, 2, "mlp.act")


def twin_of(one: Pass, wrong: bool, first: bool) -> None:
    at = next(i for i, t in enumerate(one.tensors) if (t.point, t.layer) == ("mlp.down", 2))
    twin = clone_tensor(one.tensors[at])
    if wrong:
        twin.put(2 * twin.values())
    one.tensors.insert(at if first else at + 1, twin)


@edit("greedy", expect=None)
def tensor_there_twice(trace: Trace) -> None:
    """A pass has one tensor twice, the same."""
    twin_of(repeat_of(trace)[1], False, False)


@edit("greedy", expect=DIVERGED, quick=True)
def tensor_there_twice_then_wrong(trace: Trace) -> None:
    """A pass has one tensor twice, and the second one is wrong."""
    twin_of(repeat_of(trace)[1], True, False)


@edit("greedy", expect=DIVERGED)
def tensor_there_twice_first_wrong(trace: Trace) -> None:
    """A pass has one tensor twice, and the first one is wrong."""
    twin_of(repeat_of(trace)[1], True, True)


@edit("greedy", expect=DIVERGED)
def tensor_of_a_layer_that_is_none(trace: Trace) -> Place:
    """A pass has a tensor of a layer that the model has not."""
    one = repeat_of(trace)[1]
    twin = clone_tensor(one.find("mlp.down", 2))
    twin.layer = trace.layers
    one.tensors.append(twin)
    return Place(one.number, twin.layer, "mlp.down")


@edit("greedy", expect=DIVERGED)
def tensor_of_a_point_that_the_model_has_not(trace: Trace) -> Place:
    """A pass of a dense model has a tensor of a router."""
    one = repeat_of(trace)[1]
    twin = clone_tensor(one.find("mlp.down", 2))
    twin.point, twin.axes = "mlp.router", "token, expert"
    one.tensors.append(twin)
    return Place(one.number, 2, "mlp.router")


@edit("greedy", expect=DOUBT)
def point_misspelt(trace: Trace) -> None:
    """A tensor is of a point that does not exist."""
    repeat_of(trace)[1].find("mlp.down", 2).point = "mlp.dwon"


@edit("greedy", expect=DIVERGED)
def shape_other(trace: Trace) -> Place:
    """A tensor of queries has head and dim the other way round."""
    one = repeat_of(trace)[1]
    tensor = one.find("attn.q", 2)
    tensor.put_bits(bits(tensor).reshape(tensor.shape[0], tensor.shape[2], tensor.shape[1]))
    return Place(one.number, 2, "attn.q")


# dtypes.

@edit("greedy", expect=DIVERGED)
def tensor_widened(trace: Trace) -> Place:
    """A tensor is stored as fp32, with the numbers of bf16: an fp32 that is off by half a bf16
    is wrong."""
    one = repeat_of(trace)[1]
    tensor = one.find("attn.q", 2)
    values = tensor.values()
    tensor.dtype = "fp32"
    tensor.put(values)
    return Place(one.number, 2, "attn.q")


@edit("greedy", expect=DIVERGED, quick=True)
def tensor_bits_read_as_fp16(trace: Trace) -> Place:
    """The bits of a bf16 tensor are said to be of fp16."""
    one = repeat_of(trace)[1]
    tensor = one.find("attn.q", 2)
    tensor.dtype = "fp16"
    tensor.put_bits(bits(tensor))
    return Place(one.number, 2, "attn.q")


@edit("greedy", expect=DIVERGED)
def tensor_narrowed_to_fp16(trace: Trace) -> None:
    """A tensor of a bf16 run is of fp16, with the same numbers."""
    tensor = repeat_of(trace)[1].find("attn.norm", 2)
    values = tensor.values()
    tensor.dtype = "fp16"
    tensor.put(values)


@edit("greedy", expect=DOUBT)
def index_dtype_other(trace: Trace) -> None:
    """The index has another dtype than the tensor is stored in."""
    def change(file: h5py.File) -> None:
        at = list(file["index/point"].asstr()[:]).index("attn.q")
        file["index/dtype"][at] = "fp32"
    trace.after.append(change)


@edit("greedy", expect=DIVERGED)
def token_of_float(trace: Trace) -> Place:
    """Chosen tokens are stored as floats."""
    one = repeat_of(trace)[1]
    token = one.find("token", -1)
    token.dtype = "fp32"
    token.put_bits(bits(token).astype(np.float32).view(STORAGE["fp32"]))
    return Place(one.number, -1, "token")


# Attributes and provenance.

def attribute(name: str, column: str, value: object, why: str, base: str = "greedy",
              quick: bool = False, expect: int | None = DOUBT) -> None:
    """`value` None: gone."""
    def change(trace: Trace) -> None:
        if value is None:
            del trace.attributes[column]
        else:
            trace.attributes[column] = value
    add(name, base, expect, why, change, quick)


attribute("dtype-declared-fp16", "dtype", "fp16", "the tensors are of bf16",
          expect=DIVERGED)
attribute("dtype-declared-fp32", "dtype", "fp32", "the tensors are of bf16", expect=DIVERGED)
attribute("dtype-declared-bf16", "dtype", "bf16", "the tensors are of fp32", "fp32",
          expect=DIVERGED)
attribute("dtype-misspelt", "dtype", "b16", "there is no such dtype")
attribute("complete-0", "complete", 0, "the trace says that its run did not end", quick=True)
attribute("complete-gone", "complete", None, "the trace does not say that its run ended")
attribute("format-other", "format", "lockstop", "this is another format")
attribute("format-version-1", "format_version", "1.2", "nothing reads this version any more")
attribute("format-version-3", "format_version", "3.0", "the version is not known")
attribute("level-misspelt", "level", "fulll", "there is no such level")
attribute("level-said-to-be-digest", "level", "digest", "tensors were kept all the same",
          expect=None)
attribute("world-size-2", "world_size", 2, "what another rank computed may be missing",
          expect=None)
attribute("run-id-gone", "run_id", None, "layout 1.1 has a run_id", expect=None)


# The graph.

def graph(name: str, why: str, change: Callable[[Trace], None], base: str = "greedy",
          quick: bool = False) -> None:
    add("graph-" + name, base, DOUBT, why, change, quick)


def other_graph(**other: object) -> Callable[[Trace], None]:
    """The graph of a model that differs in this from the trace's."""
    def change(trace: Trace) -> None:
        has = {node.point for node in trace.graph}
        same = {"layers": trace.layers, "qk_norm": "attn.q_norm" in has,
                "expert_layers": [n.layer for n in trace.graph if n.point == "mlp.experts"],
                "rope_tables": "rope.cos" in has}
        trace.graph = qwen_graph(**{**same, **other})
    return change


def node_of(trace: Trace, point: str, layer: int = 2) -> Node:
    return next(n for n in trace.graph if (n.point, n.layer) == (point, layer))


def swapped_inputs(trace: Trace) -> None:
    node_of(trace, "mlp.act").inputs.reverse()


def reads_a_later_node(trace: Trace) -> None:
    node_of(trace, "attn.norm").inputs[:] = [len(trace.graph) - 1]


def has_a_node_twice(trace: Trace) -> None:
    trace.graph.append(Node("mlp.norm", 2, list(node_of(trace, "mlp.norm").inputs)))


def of_an_unknown_point(trace: Trace) -> None:
    node_of(trace, "mlp.act").point = "mlp.gelu"


def says_a_node_is_of_no_layer(trace: Trace) -> None:
    node_of(trace, "attn.norm").layer = -1


graph("layers-fewer", "the checkpoint has 6 layers", other_graph(layers=5), quick=True)
graph("layers-more", "the checkpoint has 6 layers", other_graph(layers=7))
graph("qk-norm-denied", "the checkpoint has QK-norm, and so have the tensors",
      other_graph(qk_norm=False))
graph("qk-norm-claimed", "the checkpoint has no QK-norm", other_graph(qk_norm=True), "qwen2")
graph("experts-claimed", "the checkpoint has no experts", other_graph(expert_layers=[0, 2]))
graph("experts-denied", "the checkpoint has experts", other_graph(expert_layers=[]), "moe")
graph("inputs-swapped", "the op reads its inputs in another order", swapped_inputs, quick=True)
graph("reads-later", "a node reads one that comes after it", reads_a_later_node)
graph("node-twice", "a node is there twice", has_a_node_twice)
graph("unknown-point", "a node is of a point that none is", of_an_unknown_point)
graph("layer-of-none", "a point of a layer is said to be of none", says_a_node_is_of_no_layer)
graph("empty", "a model without a node computes nothing", lambda trace: trace.graph.clear())


def fact(name: str, key: str, value: str, why: str, base: str = "greedy", quick: bool = False,
         expect: int | None = DOUBT) -> None:
    def change(trace: Trace) -> None:
        trace.provenance[key] = value
    add(name, base, expect, why, change, quick)


fact("checkpoint-other", "model_xxh3", "0123456789abcdef",
     "the trace was made with another checkpoint than it is judged against", quick=True)
fact("accumulator-unknown", "accumulator", "tf23", "there is no such accumulator", quick=True)


def whole_run(base: str, layer: int, point: str, why: str) -> None:
    """The base itself is a run that does not compute what its checkpoint says."""
    add("the-run-itself", base, DIVERGED, why, lambda _: Place(0, layer, point), base == "eps")


add("nothing", "selected", CLEAN, """the trace was to hold some layers alone, and the others are
    judged with the norm after them""", lambda _: None)
whole_run("eps", 0, "attn.norm", "the run had rms_norm_eps 1e-2 where its checkpoint says 1e-6")
whole_run("theta", -1, "rope.cos", "the run had half the rope_theta that its checkpoint says")
whole_run("weights", 2, "mlp.up", "the run had other weights at one place than its checkpoint")


# Folders.

@edit_files("folder", DOUBT)
def folder_lacks_a_segment(source: Path, target: Path) -> None:
    """A segment of a folder is gone, so that there are digests of its passes alone."""
    shutil.copytree(source, target)
    (target / "seg-000001.h5").unlink()


@edit_files("folder", DOUBT)
def folder_lacks_a_segment_and_journal(source: Path, target: Path) -> None:
    """The last segment of a folder is gone, and with it the journal."""
    shutil.copytree(source, target)
    max(target.glob("seg-*.h5")).unlink()
    (target / "run.journal").unlink()


@edit_files("folder", DOUBT)
def folder_did_not_end(source: Path, target: Path) -> None:
    """The manifest of a folder says that its run did not end."""
    shutil.copytree(source, target)
    manifest = target / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"complete": False, "passes": None}))


@edit_files("folder", DOUBT)
def folder_with_more_passes_declared(source: Path, target: Path) -> None:
    """The manifest of a folder counts one pass more than there are."""
    shutil.copytree(source, target)
    manifest = target / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"passes": told["passes"] + 1}))
