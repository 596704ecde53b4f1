"""Ways to put something else in the place of a part of a Hugging Face model, for a while.

Each returns a context manager. The new function gets the old one as its first argument. They must
be entered before a Recorder watches, so that it sees what the changed model computes.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from lockstep.patches import AttentionFunctions, modeling_of, replaced

Tensor = torch.Tensor
Patch = contextlib.AbstractContextManager


@contextlib.contextmanager
def together(patches: Iterable[Patch]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def forward(modules: Iterable[nn.Module], function: Callable) -> Patch:
    """function(module, x) in the place of each module's forward."""
    return together(replaced(module, "forward", lambda x, m=module: function(m, x))
                    for module in modules)


def output(modules: Iterable[nn.Module], function: Callable) -> Patch:
    """function(y, x) of what each module returns for x."""
    def bound(module: nn.Module) -> Callable:
        inner = module.forward
        return lambda x: function(inner(x), x)
    return together(replaced(module, "forward", bound(module)) for module in modules)


def attributes(modules: Iterable[nn.Module], name: str, value: object) -> Patch:
    return together(replaced(module, name, value) for module in modules)


@contextlib.contextmanager
def weights(modules: Iterable[nn.Module], function: Callable[[Tensor], Tensor],
            name: str = "weight") -> Iterator[None]:
    """function(weight) in the place of each module's parameter, in its memory."""
    kept = [(module, getattr(module, name).detach().clone()) for module in modules]
    with torch.no_grad():
        for module, before in kept:
            parameter = getattr(module, name)
            parameter.data = function(before.clone()).to(before.dtype).contiguous()
    try:
        yield
    finally:
        for module, before in kept:
            getattr(module, name).data = before


@contextlib.contextmanager
def rope(model: nn.Module, layers: Iterable[int], function: Callable) -> Iterator[None]:
    """function(inner, q, k, cos, sin, positions) in the place of RoPE in these layers.

    q and k are [batch, head, token, dim]; inner is what transformers has.
    """
    modeling, wanted = modeling_of(model), set(layers)
    inner, state = modeling.apply_rotary_pos_emb, {}

    def look(i: int) -> Callable:
        def hook(_module, _args, kwargs):
            state.update(layer=i, positions=kwargs["position_ids"])
        return hook

    def instead(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest, **kwargs):
        if state["layer"] not in wanted:
            return inner(q, k, cos, sin, *rest, **kwargs)
        return function(inner, q, k, cos, sin, state["positions"])

    handles = [layer.self_attn.register_forward_pre_hook(look(i), with_kwargs=True)
               for i, layer in enumerate(model.model.layers)]
    try:
        with replaced(modeling, "apply_rotary_pos_emb", instead):
            yield
    finally:
        for handle in handles:
            handle.remove()


def attention(model: nn.Module, layers: Iterable[int], function: Callable) -> Patch:
    """function(inner, module, q, k, v, mask, **options) in the place of attention."""
    modeling, wanted = modeling_of(model), set(layers)

    def wrap(inner: Callable) -> Callable:
        def instead(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask, **options):
            if module.layer_idx not in wanted:
                return inner(module, q, k, v, mask, **options)
            return function(inner, module, q, k, v, mask, **options)
        return instead

    return replaced(modeling, "ALL_ATTENTION_FUNCTIONS",
                    AttentionFunctions(modeling.ALL_ATTENTION_FUNCTIONS, wrap))


@contextlib.contextmanager
def cache(layers: Iterable[int], function: Callable) -> Iterator[None]:
    """function(keys, values, new) of what the cache gives back to these layers, new rows written.

    What it changes in place stays in the cache.
    """
    from transformers.cache_utils import Cache
    wanted, inner = set(layers), Cache.update

    def instead(self, keys: Tensor, values: Tensor, layer_idx: int, *rest, **kwargs):
        made = inner(self, keys, values, layer_idx, *rest, **kwargs)
        return function(*made, keys.shape[2]) if layer_idx in wanted else made

    with replaced(Cache, "update", instead):
        yield


def decoder(model: nn.Module, layers: Iterable[int], attn_add: Callable, mlp_add: Callable,
            ) -> Patch:
    """Layers whose residual additions are attn_add(x, a, n) and mlp_add(h, m, x, n).

    x enters the layer, a is what attention made, h the stream after it, m what the MLP made, and
    n what the norm before each made.
    """
    def bound(block: nn.Module) -> Callable:
        def instead(x: Tensor, **options) -> Tensor:
            normed = block.input_layernorm(x)
            made, _ = block.self_attn(hidden_states=normed, **options)
            h = attn_add(x, made, normed)
            normed = block.post_attention_layernorm(h)
            return mlp_add(h, block.mlp(normed), x, normed)
        return instead
    blocks = [model.model.layers[i] for i in layers]
    return together(replaced(block, "forward", bound(block)) for block in blocks)


def plain_add(x: Tensor, y: Tensor, *_rest) -> Tensor:
    return x + y


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, allowed: Tensor | None = None,
           weigh: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, None]:
    """Attention in fp32 with one rounding at the end; weigh makes weights of the scores.

    q is [batch, head, row, dim], k and v [batch, kv head, key, dim]; allowed is [row, key].
    """
    groups = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(groups, dim=1) for t in (k, v))
    scores = q.float() @ keys.transpose(2, 3) * scale
    if allowed is None:
        allowed = causal(q, k)
    scores = scores.masked_fill(~allowed, -torch.inf)
    chances = torch.softmax(scores, -1) if weigh is None else weigh(scores)
    return (chances @ values).to(q.dtype).transpose(1, 2).contiguous(), None


def causal(q: Tensor, k: Tensor, ahead: int = 0) -> Tensor:
    """Which keys each row may see, the last row being at the last key."""
    rows, keys = q.shape[2], k.shape[2]
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows + ahead)


def mask_of(module: nn.Module, q: Tensor, allowed: Tensor, hidden: float | None = None) -> Tensor:
    """A mask as the module's attention function wants it, of [row, key]."""
    if module.config._attn_implementation == "sdpa" and hidden is None:
        return allowed[None, None]
    least = torch.finfo(q.dtype).min if hidden is None else hidden
    return torch.zeros(allowed.shape, dtype=q.dtype).masked_fill(~allowed, least)[None, None]


def modules_of(model: nn.Module, layers: Iterable[int], point: str) -> list[nn.Module]:
    """The module that makes the point, in each of the layers."""
    if point == "embed":
        return [model.model.embed_tokens]
    if point in ("final.norm", "logits"):
        return [model.model.norm if point == "final.norm" else model.lm_head]
    names = {"attn.norm": "input_layernorm", "attn.q": "self_attn.q_proj",
             "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
             "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm",
             "attn.o": "self_attn.o_proj", "mlp.norm": "post_attention_layernorm",
             "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}
    return [model.model.layers[i].get_submodule(names[point]) for i in layers]


def nudged(tensor: Tensor, count: int) -> Tensor:
    """Its elements, moved by so many units in the last place, away from 0 if count is positive."""
    kind = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return (tensor.contiguous().view(kind) + count).view(tensor.dtype)
