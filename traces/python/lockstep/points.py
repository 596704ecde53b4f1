"""The points of a model where a tensor can be seen; `lockstep points` lists the same."""
from __future__ import annotations

import difflib
from collections.abc import Iterable

# Every point in graph order, with the names of its axes.
AXES: dict[str, str] = {
    "embed.partial": "token, rank, hidden",
    "embed": "token, hidden",
    "rope.cos": "token, pair",
    "rope.sin": "token, pair",
    "attn.norm": "token, hidden",
    "attn.q": "token, head, dim",
    "attn.k": "token, kv head, dim",
    "attn.v": "token, kv head, dim",
    "attn.q_norm": "token, head, dim",
    "attn.k_norm": "token, kv head, dim",
    "attn.q_rope": "token, head, dim",
    "attn.k_rope": "token, kv head, dim",
    "attn.kv": "position, k|v, kv head, dim",
    "attn.partial": "token, share, head, dim",
    "attn.lse": "token, share, head",
    "attn.out": "token, head, dim",
    "attn.o_partial": "token, rank, hidden",
    "attn.o": "token, hidden",
    "attn.residual": "token, hidden",
    "mlp.norm": "token, hidden",
    "mlp.gate": "token, intermediate",
    "mlp.up": "token, intermediate",
    "mlp.act": "token, intermediate",
    "mlp.down_partial": "token, rank, hidden",
    "mlp.down": "token, hidden",
    "mlp.router": "token, expert",
    "mlp.experts": "token, choice",
    "mlp.weights": "token, choice",
    "mlp.expert_gate": "token, choice, intermediate",
    "mlp.expert_up": "token, choice, intermediate",
    "mlp.expert_act": "token, choice, intermediate",
    "mlp.expert_down_partial": "token, rank, choice, hidden",
    "mlp.expert_down": "token, choice, hidden",
    "mlp.combine": "token, hidden",
    "mlp.residual": "token, hidden",
    "final.norm": "token, hidden",
    "logits": "token, vocab",
    "token": "token",
}
ORDER: dict[str, int] = {point: i for i, point in enumerate(AXES)}
MODEL_POINTS = frozenset({"embed", "rope.cos", "rope.sin", "final.norm", "logits", "token"})
LOGIT_POINTS = frozenset({"logits", "token"})
INTEGER_POINTS = frozenset({"mlp.experts", "token"})
FLOAT32_POINTS = frozenset({"rope.cos", "rope.sin", "attn.partial", "attn.lse"})

Place = tuple[int, str]  # layer (-1: not of a layer) and point


def nearest(name: str, names: Iterable[str]) -> str:
    """The name most like it; "" where none is."""
    return next(iter(difflib.get_close_matches(name, list(names), 1, 0.5)), "")


def place_order(place: Place) -> tuple[int, int, int]:
    """Sorts places in the order in which a model computes them."""
    layer, point = place
    stage = 1 if layer >= 0 else 0 if ORDER[point] < ORDER["attn.norm"] else 2
    return stage, layer, ORDER[point]
