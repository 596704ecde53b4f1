"""The graph of Qwen2, Qwen3 and Qwen3-MoE as traces/README.md has it: who reads whom."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass
class Node:
    """A place of the model, and the numbers of the nodes that its op reads."""

    point: str
    layer: int
    inputs: list[int]


def qwen_graph(layers: int, qk_norm: bool, expert_layers: Collection[int] = (),
               rope_tables: bool = False, shares: bool = False) -> list[Node]:
    nodes: list[Node] = []

    def add(point: str, layer: int, *inputs: int) -> int:
        nodes.append(Node(point, layer, list(inputs)))
        return len(nodes) - 1

    stream = add("embed", -1)
    tables = [add("rope.cos", -1), add("rope.sin", -1)] if rope_tables else []
    for i in range(layers):
        norm = add("attn.norm", i, stream)
        q, k, v = (add(f"attn.{name}", i, norm) for name in "qkv")
        if qk_norm:
            q, k = add("attn.q_norm", i, q), add("attn.k_norm", i, k)
        q, k = add("attn.q_rope", i, q, *tables), add("attn.k_rope", i, k, *tables)
        read = [q, add("attn.kv", i, k, v)]
        merged = [add("attn.partial", i, *read), add("attn.lse", i, *read)] if shares else []
        out = add("attn.out", i, *read, *merged)
        stream = add("attn.residual", i, stream, add("attn.o", i, out))
        norm = add("mlp.norm", i, stream)
        if i in expert_layers:
            router = add("mlp.router", i, norm)
            chosen = add("mlp.experts", i, router)
            weights = add("mlp.weights", i, router, chosen)
            gate, up = (add(f"mlp.expert_{name}", i, norm, chosen) for name in ("gate", "up"))
            down = add("mlp.expert_down", i, add("mlp.expert_act", i, gate, up), chosen)
            branch = add("mlp.combine", i, down, weights, chosen)
        else:
            gate, up = add("mlp.gate", i, norm), add("mlp.up", i, norm)
            branch = add("mlp.down", i, add("mlp.act", i, gate, up))
        stream = add("mlp.residual", i, stream, branch)
    add("token", -1, add("logits", -1, add("final.norm", -1, stream)))
    return nodes
