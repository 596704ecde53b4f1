"""Bugs of experts, and bugs of a few units in the last place."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import patches
from bug import Bug, bug
from bugs_linear import added, e4m3

Tensor = torch.Tensor


def routed(name: str, point: str, story: str, function: Callable) -> Bug:
    """function(router, logits, weights, chosen) of what the router returns."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        def instead(y: tuple, _x: Tensor, router: nn.Module) -> tuple:
            return function(router, *y)
        routers = [model.model.layers[i].mlp.gate for i in layers]
        return patches.together(
            patches.output([router], lambda y, x, r=router: instead(y, x, r))
            for router in routers)
    return Bug(name, point, apply, story, frozenset(["experts"]))


def not_normalised(_router: nn.Module, logits: Tensor, _weights: Tensor, chosen: Tensor) -> tuple:
    chances = torch.softmax(logits.float(), -1)
    return logits, chances.gather(1, chosen).to(logits.dtype), chosen


def sigmoid(_router: nn.Module, logits: Tensor, _weights: Tensor, chosen: Tensor) -> tuple:
    chances = torch.sigmoid(logits.float()).gather(1, chosen)
    return logits, (chances / chances.sum(-1, keepdim=True)).to(logits.dtype), chosen


def all_but_best(router: nn.Module, logits: Tensor, _weights: Tensor, _chosen: Tensor) -> tuple:
    best = torch.softmax(logits.float(), -1).topk(router.top_k + 1)
    weights = best.values[:, 1:] / best.values[:, 1:].sum(-1, keepdim=True)
    return logits, weights.to(logits.dtype), best.indices[:, 1:]


def experts(name: str, point: str, story: str, weight: str, function: Callable) -> Bug:
    """function(weight) of the experts' weights: [expert, row, column]."""
    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        modules = [model.model.layers[i].mlp.experts for i in layers]
        return patches.weights(modules, function, weight)
    return Bug(name, point, apply, story, frozenset(["experts"]))


@bug("mlp.combine", "the second expert's part is not added", "experts")
def experts_second_dropped(model, layers):
    def bound(module: nn.Module) -> Callable:
        inner = module.forward

        def instead(x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
            shares = shares.clone()
            shares[:, 1] = 0
            return inner(x, chosen, shares)
        return instead
    return patches.together(
        patches.attributes([module], "forward", bound(module))
        for module in (model.model.layers[i].mlp.experts for i in layers))


@bug("mlp.expert_act", "GELU for SiLU", "experts")
def experts_gelu(model, layers):
    modules = [model.model.layers[i].mlp.experts.act_fn for i in layers]
    return patches.forward(modules, lambda _module, x: nn.functional.gelu(x))


EXPERTS = [
    routed("experts-weights-reversed", "mlp.weights", "each weight is another's",
           lambda _r, logits, weights, chosen: (logits, weights.flip(1), chosen)),
    routed("experts-not-normalised", "mlp.weights", "the weights do not add up to 1",
           not_normalised),
    routed("experts-sigmoid", "mlp.weights", "DeepSeek's sigmoid for softmax", sigmoid),
    routed("experts-all-but-best", "mlp.experts", "the best one is left out", all_but_best),
    routed("experts-off-by-one", "mlp.experts", "the id of the next expert",
           lambda r, logits, weights, chosen: (logits, weights, (chosen + 1) % r.num_experts)),
    experts("experts-gate-up-swapped", "mlp.expert_gate", "the halves in the other order",
            "gate_up_proj", lambda weight: weight.roll(weight.shape[1] // 2, 1)),
    experts("experts-of-the-next", "mlp.expert_gate", "each expert has another's weight",
            "gate_up_proj", lambda weight: weight.roll(1, 0)),
    experts("experts-down-e4m3", "mlp.expert_down", "weights of 8-bit floats", "down_proj", e4m3),
    experts_second_dropped, experts_gelu,
]


def nudge(name: str, point: str, story: str, count: int, where: tuple) -> Bug:
    """Moves what stands at an index of [batch, token, ...] by units in the last place."""
    def move(y: Tensor) -> Tensor:
        y = y.clone()
        y[where] = patches.nudged(y[where], count)
        return y

    def apply(model: nn.Module, layers: list[int]) -> patches.Patch:
        if point == "attn.out":
            return patches.attention(
                model, layers, lambda inner, module, q, k, v, mask, **options:
                (move(inner(module, q, k, v, mask, **options)[0]), None))
        if point in ("attn.q_rope", "attn.k_rope"):
            return patches.rope(model, layers, lambda inner, q, k, cos, sin, _:
                                (move(inner(q, k, cos, sin)[0].transpose(1, 2)).transpose(1, 2),
                                 inner(q, k, cos, sin)[1]))
        return patches.output(patches.modules_of(model, layers, point), lambda y, _x: move(y))
    needs = ["qk_norm"] if point.endswith(("q_norm", "k_norm")) else []
    return Bug(name, point, apply, story, frozenset(needs))


ALL = slice(None)
NUDGES = [
    nudge("ulp-1-down-element", "mlp.down", "one element of one row", 1, (0, -1, 40)),
    nudge("ulp-2-down-element", "mlp.down", "one element of one row", 2, (0, -1, 40)),
    nudge("ulp-4-down-element", "mlp.down", "one element of one row", 4, (0, -1, 40)),
    nudge("ulp-8-gate-element", "mlp.gate", "one element of one row", 8, (0, -1, 40)),
    nudge("ulp-1-up-column", "mlp.up", "one channel", 1, (ALL, ALL, 9)),
    nudge("ulp-2-up-column", "mlp.up", "one channel", 2, (ALL, ALL, 9)),
    nudge("ulp-4-v-column", "attn.v", "one channel", 4, (ALL, ALL, 9)),
    nudge("ulp-1-o-row", "attn.o", "the last row", 1, (0, -1)),
    nudge("ulp-2-o-row", "attn.o", "the last row", 2, (0, -1)),
    nudge("ulp-1-o-all", "attn.o", "every element", 1, (ALL,)),
    nudge("ulp-1-mlp-norm-all", "mlp.norm", "every element", 1, (ALL,)),
    nudge("ulp-1-q-norm-head", "attn.q_norm", "one head", 1, (ALL, ALL, 1)),
    nudge("ulp-2-q-norm-head", "attn.q_norm", "one head", 2, (ALL, ALL, 1)),
    nudge("ulp-1-q-rope-all", "attn.q_rope", "every element", 1, (ALL,)),
    nudge("ulp-4-q-rope-element", "attn.q_rope", "one element of one row", 4, (0, -1, 0, 3)),
    nudge("ulp-1-attention-head", "attn.out", "one head", 1, (ALL, ALL, 1)),
    nudge("ulp-2-attention-head", "attn.out", "one head", 2, (ALL, ALL, 1)),
    nudge("ulp-8-attention-element", "attn.out", "one element of one row", 8, (0, -1, 0, 3)),
    nudge("ulp-4-norm-column", "attn.norm", "one channel", 4, (ALL, ALL, 11)),
    nudge("ulp-8-final-norm-element", "final.norm", "one element of the last row", 8, (0, -1, 7)),
    nudge("ulp-2-logits-all", "logits", "every element", 2, (ALL,)),
    nudge("ulp-4-logits-element", "logits", "one word of the last row", 4, (0, -1, 300)),
    added("ulp-1-residual-element", "mlp.residual", "the sum in one channel is half an ulp off",
          mlp=lambda h, m, _x, _n: torch.cat(((h + m)[..., :1],
                                              patches.nudged((h + m)[..., 1:2], 1),
                                              (h + m)[..., 2:]), -1)),
]

BUGS = EXPERTS + NUDGES
