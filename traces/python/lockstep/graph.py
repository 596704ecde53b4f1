"""Who reads whom: the graph of Qwen2, Qwen3 and Qwen3-MoE, as traces/README.md has it."""
from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from lockstep.errors import LockstepError, check

Config = Mapping[str, Any]
ConfigLike = Union[Config, str, "pathlib.Path", object]

FAMILIES = ("qwen2", "qwen3", "qwen3_moe")
# Of a family whose heads are not hidden / heads wide where its configuration does not say.
HEAD_DIMS = {"qwen3": 128}


@dataclass(frozen=True)
class Node:
    """A place of the model, and the numbers of the nodes that its op reads."""

    point: str
    layer: int
    inputs: tuple[int, ...]


def read_config(config: ConfigLike) -> Config:
    """A config.json as a mapping: of a checkpoint's folder, a file, or a transformers config."""
    if isinstance(config, Mapping):
        return config
    if isinstance(config, (str, pathlib.Path)):
        path = pathlib.Path(config)
        path = path / "config.json" if path.is_dir() else path
        check(path.exists(), f"{path} is not there: the folder of a checkpoint was wanted, with "
              "its config.json")
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise LockstepError(f"{path} is no config.json that can be read ({error}): name a "
                                "checkpoint's folder") from error
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        raise LockstepError(f"a {type(config).__name__} is no configuration: give a mapping, a "
                            "path or a transformers config")
    return to_dict()


def dimensions(config: Config) -> dict[str, int]:
    """The letters of a map file: H heads, K kv heads, D head dim, h hidden, I, V, L layers."""
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        usual = HEAD_DIMS.get(config.get("model_type"), hidden // heads)
        return {"H": heads, "K": config.get("num_key_value_heads") or heads,
                "D": config.get("head_dim") or usual, "h": hidden,
                "I": config["intermediate_size"], "V": config["vocab_size"],
                "L": config["num_hidden_layers"]}
    except KeyError as error:
        raise LockstepError(f"the configuration has no {error}: the config.json of a Qwen "
                            "checkpoint was wanted") from error


def expert_layers(config: Config) -> list[int]:
    """The layers whose MLP is one of experts."""
    if config.get("model_type") != "qwen3_moe":
        return []
    dense = set(config.get("mlp_only_layers") or [])
    step = config.get("decoder_sparse_step") or 1
    some = config.get("num_experts") or config.get("num_local_experts")
    return [i for i in range(config["num_hidden_layers"])
            if some and i not in dense and (i + 1) % step == 0]


def graph_of(config: Config, ranks: int = 1, shares: bool = False) -> list[Node]:
    """The graph of the model that a config.json describes, shared by so many ranks; with the shares
    that attention is merged of, where an engine shows them."""
    family = config.get("model_type")
    check(family in FAMILIES, f"the model_type is {family!r}, and graphs are known of "
          f"{', '.join(FAMILIES)}: give the Writer the graph of yours")
    return qwen_graph(config["num_hidden_layers"], family != "qwen2", expert_layers(config),
                      ranks > 1, shares)


def qwen_graph(layers: int, qk_norm: bool, experts: Collection[int] = (),
               ranks: bool = False, shares: bool = False) -> list[Node]:
    """One node an op, in the order in which the model computes them; over ranks, one too for what
    each adds to a sum, and in shares, for those that attention is merged of."""
    nodes: list[Node] = []

    def add(point: str, layer: int, *inputs: int) -> int:
        nodes.append(Node(point, layer, inputs))
        return len(nodes) - 1

    def add_sum(point: str, layer: int, *inputs: int) -> int:
        if not ranks:
            return add(point, layer, *inputs)
        partial = "embed.partial" if point == "embed" else f"{point}_partial"
        return add(point, layer, add(partial, layer, *inputs), *inputs[1:])

    def add_mlp(i: int, norm: int) -> int:
        gate, up = add("mlp.gate", i, norm), add("mlp.up", i, norm)
        return add_sum("mlp.down", i, add("mlp.act", i, gate, up))

    def add_experts(i: int, norm: int) -> int:
        router = add("mlp.router", i, norm)
        chosen = add("mlp.experts", i, router)
        weights = add("mlp.weights", i, router, chosen)
        gate, up = (add(f"mlp.expert_{name}", i, norm, chosen) for name in ("gate", "up"))
        down = add_sum("mlp.expert_down", i, add("mlp.expert_act", i, gate, up), chosen)
        return add("mlp.combine", i, down, weights, chosen)

    stream = add_sum("embed", -1)
    for i in range(layers):
        norm = add("attn.norm", i, stream)
        q, k, v = (add(f"attn.{name}", i, norm) for name in "qkv")
        if qk_norm:
            q, k = add("attn.q_norm", i, q), add("attn.k_norm", i, k)
        q, k = add("attn.q_rope", i, q), add("attn.k_rope", i, k)
        kv = add("attn.kv", i, k, v)
        merged = ("attn.partial", "attn.lse") if shares else ()
        out = add("attn.out", i, q, kv, *[add(point, i, q, kv) for point in merged])
        stream = add("attn.residual", i, stream, add_sum("attn.o", i, out))
        norm = add("mlp.norm", i, stream)
        stream = add("mlp.residual", i, stream, (add_experts if i in experts else add_mlp)(i, norm))
    add("token", -1, add("logits", -1, add("final.norm", -1, stream)))
    return nodes


def with_tables(graph: Sequence[Node]) -> list[Node]:
    """The graph with the nodes of RoPE's cosines and sines behind the embedding."""
    cos = next((i for i, node in enumerate(graph, 1) if node.point == "embed"), 0)
    moved = [Node(node.point, node.layer, tuple(i if i < cos else i + 2 for i in node.inputs) +
                  ((cos, cos + 1) if node.point in ("attn.q_rope", "attn.k_rope") else ()))
             for node in graph]
    return [*moved[:cos], Node("rope.cos", -1, ()), Node("rope.sin", -1, ()), *moved[cos:]]
