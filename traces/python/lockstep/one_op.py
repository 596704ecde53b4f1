"""The models in which a single op is one node, and inputs for it that are not kind."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.checkpoint import LAYER, config_of
from lockstep.errors import check

Shape = tuple[int, ...]
PAGE = 4  # tokens of a page of the cache

# How the numbers of a case lie: ordinary ones, some channels far larger, 16 binades at once, large
# and small ones, and rows that are zero.
KINDS = ("random", "outliers", "spread", "large", "small", "zero rows")


class Cache(NamedTuple):
    """K and V in pages, each [pages, page size, kv heads, dim]."""

    k: Any
    v: Any


class Batch(NamedTuple):
    """Which queries are whose: as LockstepBatch of kernels/lockstep_ops.h."""

    query_start: Any
    context_length: Any
    page_table: Any


@dataclasses.dataclass
class Case:
    """One call of the function, and the pass of a trace that shows it."""

    name: str
    inputs: dict[str, Any]             # by parameter, in the order of the call
    out: Any                           # of the shape and dtype of the output
    shown: list[tuple[str, Any]]       # point and tensor: what the op read
    requests: list[int]                # of each row
    positions: list[int]
    tokens: list[int] | None = None
    caches: dict[int, Any] = dataclasses.field(default_factory=dict)  # request -> K and V it read
    inherited: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Recipe:
    """An op as one node of a model."""

    point: str
    config: Mapping[str, Any]
    weights: dict[str, Any]
    cases: list[Case]
    tables: bool = False               # the trace has RoPE's cosines and sines


class Numbers:
    """Tensors of a dtype that look random, the same for the same seed."""

    def __init__(self, dtype: str, seed: int) -> None:
        import torch
        self.torch, self.name, self.dtype = torch, dtype, getattr(torch, dtype)
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(shape, generator=self.generator)

    def integers(self, end: int, *shape: int) -> Any:
        return self.torch.randint(0, end, shape, generator=self.generator, dtype=self.torch.int32)

    def order(self, count: int) -> Any:
        return self.torch.randperm(count, generator=self.generator)

    def values(self, kind: str, *shape: int) -> Any:
        made = self.normal(*shape)
        if kind == "outliers":
            made[..., :: 17] *= 60
        elif kind == "spread":
            made *= self.torch.exp2(16 * self.torch.rand(shape, generator=self.generator) - 10)
        elif kind == "large":
            made *= 2.0**5
        elif kind == "small":
            made *= 2.0**-9
        elif kind == "zero rows":
            made[1::3] = 0
        return made.to(self.dtype)

    def weight(self, *shape: int) -> Any:
        return (self.normal(*shape) / math.sqrt(shape[-1])).to(self.dtype)

    def gain(self, width: int) -> Any:
        return (1 + 0.3 * self.normal(width)).to(self.dtype)

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.empty(shape, dtype=dtype or self.dtype)

    def config(self, family: str, **fields: Any) -> dict[str, Any]:
        return config_of(family, self.name, **fields)

    def cases(self, rows: int, make: Callable[[str], tuple[dict[str, Any], Any, list[Any]]],
              kinds: Sequence[str] = KINDS) -> list[Case]:
        """One of each kind, of rows of a request of its own."""
        return [Case(kind, *make(kind), [number] * rows, list(range(rows)))
                for number, kind in enumerate(kinds)]


def gather_rows(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, entries, width = shape
    table, made = n.values("random", entries, width), []
    for number, name in enumerate(("random", "first and last", "one again and again")):
        index = n.integers(entries, rows)
        if name != "random":
            index[:] = entries - 1
            index[::2] = 0 if name == "first and last" else entries - 1
        made.append(Case(name, {"index": index, "table": table}, n.empty(rows, width), [],
                         [number] * rows, list(range(rows)), index.tolist()))
    return [Recipe("embed", n.config("qwen3", hidden_size=width, vocab_size=entries),
                   {"model.embed_tokens.weight": table}, made)]


def rms_norm(n: Numbers, shape: Shape) -> list[Recipe]:
    gain = n.gain(shape[-1])
    heads = len(shape) == 3
    before = "attn.q" if heads else "embed"

    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        x = n.values(kind, *shape)
        return {"x": x, "weight": gain, "eps": 1e-6}, n.empty(*shape), [(before, x)]

    if heads:
        return [Recipe("attn.q_norm", n.config("qwen3", num_attention_heads=shape[1],
                                               head_dim=shape[2]),
                       {LAYER + "self_attn.q_norm.weight": gain}, n.cases(shape[0], make))]
    return [Recipe("attn.norm", n.config("qwen3", hidden_size=shape[1]),
                   {LAYER + "input_layernorm.weight": gain}, n.cases(shape[0], make))]


def matmul(n: Numbers, shape: Shape) -> list[Recipe]:
    """Without a bias, and with one where the width of the output is that of a head."""
    rows, inner, width = shape
    weight, bias = n.weight(width, inner), n.values("random", width)

    def make(before: str, some_bias: Any, out: Shape) -> Any:
        def one(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
            x = n.values(kind, rows, inner)
            return ({"x": x, "weight": weight, "bias": some_bias}, n.empty(rows, width),
                    [(before, x)])
        return one

    recipes = [Recipe("mlp.gate", n.config("qwen3", hidden_size=inner, intermediate_size=width),
                      {LAYER + "mlp.gate_proj.weight": weight},
                      n.cases(rows, make("mlp.norm", None, (rows, width))))]
    if width % 2 == 0:
        recipes.append(Recipe(
            "attn.v", n.config("qwen2", hidden_size=inner, head_dim=width),
            {LAYER + "self_attn.v_proj.weight": weight, LAYER + "self_attn.v_proj.bias": bias},
            n.cases(rows, make("attn.norm", bias, (rows, 1, width)))))
    return recipes


def rope(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, heads, dim = shape
    entries, torch = 3000 + rows, n.torch
    pairs = torch.arange(0, dim, 2, dtype=torch.float64)
    angles = torch.arange(entries, dtype=torch.float64)[:, None] * 10000.0 ** (-pairs / dim)
    cos, sin, made = angles.cos().float(), angles.sin().float(), []
    for number, kind in enumerate(KINDS):
        first = 0 if number % 2 == 0 else 1000 * (number // 2 + 1)
        positions = torch.arange(first, first + rows, dtype=torch.int32)
        x = n.values(kind, *shape)
        made.append(Case(kind, {"x": x, "cos": cos, "sin": sin, "positions": positions},
                         n.empty(*shape),
                         [("attn.q_norm", x), ("rope.cos", cos[positions.long()]),
                          ("rope.sin", sin[positions.long()])],
                         [number] * rows, positions.tolist(),
                         inherited={number: [1] * first} if first else {}))
    return [Recipe("attn.q_rope", n.config("qwen3", num_attention_heads=heads, head_dim=dim), {},
                   made, tables=True)]


def silu_mul(n: Numbers, shape: Shape) -> list[Recipe]:
    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        # Past 88 its exp is no number of fp32, in which the op works.
        gate, up = n.values(kind, *shape).clamp(-80, 80), n.values(kind, *shape)
        return {"gate": gate, "up": up}, n.empty(*shape), [("mlp.gate", gate), ("mlp.up", up)]
    return [Recipe("mlp.act", n.config("qwen3", intermediate_size=shape[1]), {},
                   n.cases(shape[0], make))]


def add(n: Numbers, shape: Shape) -> list[Recipe]:
    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        a, b = n.values(kind, *shape), n.values(kind, *shape)
        return {"a": a, "b": b}, n.empty(*shape), [("embed", a), ("attn.o", b)]
    return [Recipe("attn.residual", n.config("qwen3", hidden_size=shape[1]), {},
                   n.cases(shape[0], make))]


def argmax(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, vocab = shape

    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        logits = n.values(kind, rows, vocab)
        if kind == "large":  # with equals of the largest
            logits[:, vocab // 2::3] = logits.max()
        return {"logits": logits}, n.empty(rows, dtype=n.torch.int32), [("logits", logits)]
    return [Recipe("token", n.config("qwen3", vocab_size=vocab), {}, n.cases(rows, make))]


def _experts(n: Numbers, experts: int, choices: int, **fields: Any) -> dict[str, Any]:
    return n.config("qwen3_moe", num_experts=experts, num_experts_per_tok=choices, **fields)


def top_k(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, experts, choices = shape

    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        logits = n.values(kind, rows, experts)
        return ({"logits": logits}, n.empty(rows, choices, dtype=n.torch.int32),
                [("mlp.router", logits)])
    return [Recipe("mlp.experts", _experts(n, experts, choices), {}, n.cases(rows, make))]


def _chosen(n: Numbers, rows: int, experts: int, choices: int) -> Any:
    """Different experts for each row, [rows, choices]."""
    return n.normal(rows, experts).argsort(-1)[:, :choices].int()


def softmax_of(n: Numbers, shape: Shape) -> list[Recipe]:
    """Over all logits, and over the chosen ones alone."""
    rows, experts, choices = shape
    recipes = []
    for normalised in (True, False):
        def make(kind: str, normalised: bool = normalised) -> tuple[dict[str, Any], Any, list[Any]]:
            logits = n.values(kind, rows, experts)
            index = logits.float().argsort(-1, descending=True)[:, :choices].int()
            return ({"logits": logits, "index": index, "normalised": normalised},
                    n.empty(rows, choices), [("mlp.router", logits), ("mlp.experts", index)])
        recipes.append(Recipe("mlp.weights", _experts(n, experts, choices,
                                                      norm_topk_prob=normalised), {},
                              n.cases(rows, make)))
    return recipes


def expert_matmul(n: Numbers, shape: Shape) -> list[Recipe]:
    """Of what all choices of a token read, and of what each has of its own."""
    rows, experts, choices, inner, width = shape
    weights = [n.weight(width, inner) for _ in range(experts)]

    def make(before: str, x_shape: Shape) -> Any:
        def one(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
            x, index = n.values(kind, *x_shape), _chosen(n, rows, experts, choices)
            return ({"x": x, "index": index, "weights": weights}, n.empty(rows, choices, width),
                    [(before, x), ("mlp.experts", index)])
        return one

    def named(part: str) -> dict[str, Any]:
        return {f"{LAYER}mlp.experts.{i}.{part}_proj.weight": w for i, w in enumerate(weights)}

    return [Recipe("mlp.expert_gate", _experts(n, experts, choices, hidden_size=inner,
                                               moe_intermediate_size=width),
                   named("gate"), n.cases(rows, make("mlp.norm", (rows, inner)))),
            Recipe("mlp.expert_down", _experts(n, experts, choices, hidden_size=width,
                                               moe_intermediate_size=inner),
                   named("down"), n.cases(rows, make("mlp.expert_act", (rows, choices, inner))))]


def weighted_sum(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, choices, width = shape

    def make(kind: str) -> tuple[dict[str, Any], Any, list[Any]]:
        x = n.values(kind, *shape)
        weights = n.normal(rows, choices).softmax(-1).to(n.dtype)
        return ({"x": x, "weights": weights}, n.empty(rows, width),
                [("mlp.expert_down", x), ("mlp.weights", weights),
                 ("mlp.experts", _chosen(n, rows, choices + 1, choices))])
    return [Recipe("mlp.combine", _experts(n, choices + 1, choices, hidden_size=width), {},
                   n.cases(rows, make))]


class Paged:
    """K and V of requests, on pages in no order, between pages of others."""

    def __init__(self, n: Numbers, lengths: Sequence[int], rows: Sequence[Any]) -> None:
        torch = n.torch
        counts = [-(-length // PAGE) for length in lengths]
        pages = n.order(sum(counts) + 3).int()
        self.table = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32)
        shape = (len(pages), PAGE, *rows[0].shape[2:])
        self.cache = Cache(n.values("random", *shape), n.values("random", *shape))
        begin = 0
        for request, (count, kv) in enumerate(zip(counts, rows)):
            self.table[request, :count] = pages[begin:begin + count]
            begin += count
            slots = self.slots(request, lengths[request])
            for half, part in enumerate((self.cache.k, self.cache.v)):
                part.flatten(0, 1)[slots] = kv[:, half]

    def slots(self, request: int, length: int) -> Any:
        import torch
        at = torch.arange(length)
        return self.table[request][at // PAGE].long() * PAGE + at % PAGE


def paged_attention(n: Numbers, shape: Shape) -> list[Recipe]:
    """Two prompts of two requests, then one more token of each; with all keys, and a window."""
    keys, heads, kv_heads, dim = shape
    check(heads % kv_heads == 0, f"{heads} heads share {kv_heads} heads of K and V: a multiple "
          "was wanted")
    lengths = (keys, keys // 2 + 1)

    def make(window: int) -> list[Case]:
        made: list[Case] = []
        for number, kind in enumerate(KINDS[:-1]):
            kind = "random" if kind == "large" else kind  # scores, not a choice of one key
            kv = [n.values(kind, length + 1, 2, kv_heads, dim) for length in lengths]
            for more in (0, 1):
                made.append(_attention(n, f"{kind}, {('prompts', 'one token')[more]}", 2 * number,
                                       [length + more for length in lengths],
                                       [1, 1] if more else list(lengths), kv, heads, window))
        return made

    fields = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim}
    window = max(2, keys // 3)
    sliding = n.config("qwen2", **fields, use_sliding_window=True, sliding_window=window,
                       max_window_layers=0, layer_types=["sliding_attention"])
    return [Recipe("attn.out", n.config("qwen3", **fields), {}, make(0)),
            Recipe("attn.out", sliding, {}, make(window))]


def _attention(n: Numbers, name: str, first: int, contexts: Sequence[int], counts: Sequence[int],
               kv: Sequence[Any], heads: int, window: int) -> Case:
    torch = n.torch
    seen = [part[:context] for part, context in zip(kv, contexts)]
    paged = Paged(n, contexts, seen)
    q = n.values("random", sum(counts), heads, kv[0].shape[-1])
    starts = torch.tensor([0, counts[0], sum(counts)], dtype=torch.int32)
    batch = Batch(starts, torch.tensor(contexts, dtype=torch.int32), paged.table)
    inputs = {"q": q, "cache": paged.cache, "batch": batch, "scale": q.shape[-1] ** -0.5,
              "window": window}
    requests = [first] * counts[0] + [first + 1] * counts[1]
    positions = [at for context, count in zip(contexts, counts)
                 for at in range(context - count, context)]
    new = torch.cat([part[-count:] for part, count in zip(seen, counts)])
    shown = [("attn.q_rope", q), ("attn.k_rope", new[:, 0]), ("attn.v", new[:, 1])]
    return Case(name, inputs, torch.empty_like(q), shown, requests, positions,
                caches={first: seen[0], first + 1: seen[1]})


def kv_write(n: Numbers, shape: Shape) -> list[Recipe]:
    """Rows of a request, and one of a padded batch that is of none."""
    rows, made = shape[0], []
    for number, kind in enumerate(KINDS):
        k, v = n.values(kind, rows + 1, *shape[1:]), n.values(kind, rows + 1, *shape[1:])
        paged = Paged(n, [rows], [n.values("random", rows, 2, *shape[1:])])
        slots = n.torch.cat((paged.slots(0, rows), n.torch.tensor([-1])))
        made.append(Case(kind, {"k": k, "v": v, "slots": slots}, paged.cache,
                         [("attn.k_rope", k[:rows]), ("attn.v", v[:rows])],
                         [number] * rows, list(range(rows))))
    return [_cache_recipe(n, shape, made)]


def kv_gather(n: Numbers, shape: Shape) -> list[Recipe]:
    rows, made = shape[0], []
    for number, kind in enumerate(KINDS):
        kv = n.values(kind, rows, 2, *shape[1:])
        paged = Paged(n, [rows], [kv])
        made.append(Case(kind, {"cache": paged.cache, "page_table": paged.table[0]},
                         n.torch.empty_like(kv), [("attn.k_rope", kv[:, 0]), ("attn.v", kv[:, 1])],
                         [number] * rows, list(range(rows))))
    return [_cache_recipe(n, shape, made)]


def _cache_recipe(n: Numbers, shape: Shape, made: list[Case]) -> Recipe:
    return Recipe("attn.kv", n.config("qwen3", num_attention_heads=shape[1],
                                      num_key_value_heads=shape[1], head_dim=shape[2]), {}, made)


@dataclasses.dataclass(frozen=True)
class Op:
    """How an op is called, what the numbers of its shape are, and which are tried unasked."""

    parameters: str
    axes: str
    recipes: Callable[[Numbers, Shape], list[Recipe]]
    shapes: tuple[Shape, ...]


OPS: dict[str, Op] = {
    "gather_rows": Op("out, index, table", "rows, entries, width", gather_rows, ((9, 33, 40),)),
    "rms_norm": Op("out, x, weight, eps", "rows, width or rows, heads, dim", rms_norm,
                   ((17, 200), (5, 6, 64))),
    "matmul": Op("out, x, weight, bias", "rows, inner, width", matmul, ((7, 200, 66),)),
    "rope": Op("out, x, cos, sin, positions", "rows, heads, dim", rope, ((17, 3, 64),)),
    "kv_write": Op("cache, k, v, slots", "rows, kv heads, dim", kv_write, ((11, 2, 32),)),
    "kv_gather": Op("out, cache, page_table", "rows, kv heads, dim", kv_gather, ((11, 2, 32),)),
    "paged_attention": Op("out, q, cache, batch, scale, window", "keys, heads, kv heads, dim",
                          paged_attention, ((21, 6, 2, 32),)),
    "silu_mul": Op("out, gate, up", "rows, width", silu_mul, ((13, 200),)),
    "add": Op("out, a, b", "rows, width", add, ((13, 200),)),
    "argmax": Op("out, logits", "rows, vocab", argmax, ((9, 300),)),
    "top_k": Op("out, logits", "rows, experts, choices", top_k, ((19, 16, 3),)),
    "softmax_of": Op("out, logits, index, normalised", "rows, experts, choices", softmax_of,
                     ((19, 16, 3),)),
    "expert_matmul": Op("out, x, index, weights", "rows, experts, choices, inner, width",
                        expert_matmul, ((11, 5, 2, 96, 40),)),
    "weighted_sum": Op("out, x, weights", "rows, choices, width", weighted_sum, ((13, 3, 96),)),
}
