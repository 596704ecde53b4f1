"""Where points round inside: declared otherwise than computed, misspelt, and as they should be."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from checkpoint import Checkpoint
from passes import config_of, theta_of
from registry import CLEAN, DIVERGED, DOUBT, Place, add, edit, wants
from tensors import bits_of, values_of
from trace_model import Pass, Tensor, Trace
from wrong_values import layer_of, repeat_of


def declare(trace: Trace, points: Mapping[str, object]) -> None:
    declared = json.loads(trace.provenance["schema_json"])
    trace.provenance["schema_json"] = json.dumps(declared | points)


def declared(name: str, points: Mapping[str, object], expect: int | None, why: str,
             quick: bool = False) -> None:
    add(name, "greedy", expect, why, lambda trace: declare(trace, points), quick)


def text(name: str, value: str, why: str) -> None:
    def change(trace: Trace) -> None:
        trace.provenance["schema_json"] = value
    add(name, "greedy", DOUBT, why, change)


declared("schema-point-misspelt", {"attn.qq": "fused"}, DOUBT, "there is no point of that name",
         True)
declared("schema-unknown", {"attn.q": "fusde"}, DOUBT, "there is no schema of that name", True)
declared("schema-of-other-case", {"attn.q": "FUSED"}, DOUBT, "there is no schema of that name")
declared("schema-a-number", {"attn.q": 3}, DOUBT, "a schema is a word")
text("schema-json-damaged", "{\"attn.q\": \"fused\"", "this is no JSON")
text("schema-json-no-object", "[1, 2]", "this is no table of points")
text("schema-json-empty", "", "this is no JSON")
for rounding, where in (("hf", "attn.norm"), ("hf", "attn.q_rope"), ("hf", "mlp.act"),
                        ("hf", "final.norm"), ("eager", "attn.out")):
    declared(f"schema-{rounding}@{where}", {where: rounding}, None,
             """said to round where it does not: its numbers are the nearer to exact for it, and
             whether they are within what that rounding may do is not written anywhere""")
declared("schema-hf@attn.q", {"attn.q": "hf"}, CLEAN, "a linear op rounds at its store in hf too")


# The arithmetic of Hugging Face's modules, rounded after each op as they do.

def stored(values: np.ndarray, tensor: Tensor) -> np.ndarray:
    return values_of(bits_of(values, tensor.dtype), tensor.dtype)


def norm_as_hf(trace: Trace, source: Tensor, weight: str) -> np.ndarray:
    values, config = source.values(), config_of(trace)
    scale = 1 / np.sqrt((values ** 2).mean(-1, keepdims=True) + config["rms_norm_eps"])
    return Checkpoint(Path(trace.provenance["model"])).weight(weight) * stored(values * scale,
                                                                              source)


def rope_as_hf(trace: Trace, source: Tensor) -> np.ndarray:
    half = source.shape[-1] // 2
    positions = np.array([position for _, position in source.rows])
    angles = positions[:, None, None] * theta_of(trace) ** (-np.arange(half) / half)
    angles = np.concatenate([angles, angles], axis=-1)
    values = source.values()
    turned = np.concatenate([-values[..., half:], values[..., :half]], axis=-1)
    return (stored(values * stored(np.cos(angles), source), source)
            + stored(turned * stored(np.sin(angles), source), source))


def act_as_hf(one: Pass, layer: int) -> np.ndarray:
    gate, up = one.find("mlp.gate", layer), one.find("mlp.up", layer)
    values = gate.values()
    return stored(values / (1 + np.exp(-values)), gate) * up.values()


def computed(point: str, trace: Trace, one: Pass) -> np.ndarray:
    """The tensor of the point as Hugging Face's modules make it of the pass's own inputs."""
    layer = layer_of(trace, point)
    if point == "attn.norm":
        return norm_as_hf(trace, one.find("mlp.residual", layer - 1),
                          f"model.layers.{layer}.input_layernorm.weight")
    if point == "final.norm":
        return norm_as_hf(trace, one.find("mlp.residual", trace.layers - 1), "model.norm.weight")
    if point == "mlp.act":
        return act_as_hf(one, layer)
    return rope_as_hf(trace, one.find("attn.q_norm", layer))


def put_as_hf(point: str) -> Callable[[Trace], Place]:
    def change(trace: Trace) -> Place:
        _, one = repeat_of(trace)
        layer = layer_of(trace, point)
        one.find(point, layer).put(computed(point, trace, one))
        return Place(one.number, layer, point)
    return change


for where in ("attn.norm", "attn.q_rope", "mlp.act", "final.norm"):
    add(f"computed-as-hf@{where}", "greedy", DIVERGED,
        "the point rounds inside as Hugging Face's modules do, and says that it does not",
        put_as_hf(where), where == "final.norm")


def final_norm_as_hf(trace: Trace) -> Place:
    """Every final norm is made as Hugging Face does, and the logits of it anew, rounded once."""
    weight = Checkpoint(Path(trace.provenance["model"])).weight("model.embed_tokens.weight")
    for one in trace.passes:
        norm = one.find("final.norm", -1)
        norm.put(computed("final.norm", trace, one))
        if one.logit_rows:
            logits = one.find("logits", -1)
            rows = [norm.rows.index(label) for label in logits.rows]
            logits.put(norm.values()[rows] @ weight.T)
            one.refresh_best()
            wants(all(best.chosen == best.ids[0] for best in one.best), "no tie between tokens")
    return Place(0, -1, "final.norm")


@edit("greedy", expect=CLEAN)
def final_norm_as_hf_and_declared(trace: Trace) -> None:
    """The final norm rounds as Hugging Face's does, and says so."""
    final_norm_as_hf(trace)
    declare(trace, {"final.norm": "hf"})


@edit("greedy", expect=CLEAN)
def final_norm_as_hf_and_undeclared(trace: Trace) -> None:
    """The final norm rounds as Hugging Face's does, and says nothing, so that the judge tries."""
    final_norm_as_hf(trace)
    schemas = json.loads(trace.provenance["schema_json"])
    del schemas["final.norm"]
    trace.provenance["schema_json"] = json.dumps(schemas)


@edit("greedy", expect=DIVERGED)
def final_norm_as_hf_and_declared_fused(trace: Trace) -> Place:
    """The final norm rounds as Hugging Face's does, in all passes, and says that it is fused."""
    return final_norm_as_hf(trace)
