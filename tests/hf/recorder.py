"""Sees every point of a Hugging Face Qwen2, Qwen3 or Qwen3-MoE model while it computes.

Hooks of the modules show what they read and write; the functions that are no modules (RoPE and the
attention interface) are replaced, in the model's own file, by ones that call them and look on.
Nothing is computed anew: what is recorded are copies of the tensors that the model itself made.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from trace_file import Pass, Place
from lockstep.patches import AttentionFunctions, SeenLinears, modeling_of, replaced

Tensor = torch.Tensor

EXPERT_POINTS = ("mlp.expert_gate", "mlp.expert_up", "mlp.expert_act", "mlp.expert_down")


class Recorder:
    """Fills the tensors of one Pass at a time. `keep` says which rows of a batch are tokens."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.modeling = model, modeling_of(model)
        self.heads = model.config.num_attention_heads
        self.kv_heads = model.config.num_key_value_heads
        self.run: Pass | None = None
        self.keep: Tensor | None = None          # bool [batch, token]
        self.positions: list[int] = []           # how many each request has behind this pass
        self.padding: list[int] = []             # rows before position 0 of each request
        self.layer = -1

    def begin(self, run: Pass, keep: Tensor, positions: list[int], padding: list[int]) -> None:
        self.run, self.keep, self.positions, self.padding = run, keep, positions, padding

    def put(self, layer: int, point: str, tensor: Tensor) -> None:
        self.run.tensors[layer, point] = tensor.detach().clone()

    def put_rows(self, layer: int, point: str, tensor: Tensor) -> None:
        """The rows of tokens of [batch * token, ...]."""
        self.put(layer, point, tensor[self.keep.flatten()])

    def show(self, layer: int, point: str, tensor: Tensor, *shape: int) -> None:
        """The rows of tokens of [batch, token, ...], as [row, *shape]."""
        rows = tensor.detach()[self.keep].clone()
        self.run.tensors[layer, point] = rows.reshape(len(rows), *shape) if shape else rows

    def show_cache(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """K and V as attention reads them: [batch, kv head, position, dim]."""
        for request, (count, skipped) in enumerate(zip(self.positions, self.padding)):
            both = torch.stack([keys[request], values[request]])[:, :, skipped:skipped + count]
            self.run.caches[layer, request] = both.detach().permute(2, 0, 1, 3).clone()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, each call of the model is recorded."""
        with contextlib.ExitStack() as stack:
            for handle in self.hooks():
                stack.callback(handle.remove)
            rope = self.modeling.apply_rotary_pos_emb
            functions = self.modeling.ALL_ATTENTION_FUNCTIONS
            stack.enter_context(replaced(self.modeling, "apply_rotary_pos_emb", self.rope(rope)))
            stack.enter_context(replaced(self.modeling, "ALL_ATTENTION_FUNCTIONS",
                                         AttentionFunctions(functions, self.attention)))
            yield

    def rope(self, inner: Callable) -> Callable:
        def look(q: Tensor, k: Tensor, *args, **kwargs):
            made = inner(q, k, *args, **kwargs)
            for point, tensor in zip(("attn.q_rope", "attn.k_rope"), made):
                self.show(self.layer, point, tensor.transpose(1, 2))
            return made
        return look

    def attention(self, inner: Callable) -> Callable:
        def look(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs):
            self.show_cache(module.layer_idx, k, v)
            made = inner(module, q, k, v, mask, **kwargs)
            self.show(module.layer_idx, "attn.out", made[0])
            return made
        return look

    def hooks(self) -> list:
        model = self.model.model
        found = [self.after(model.embed_tokens, -1, "embed"),
                 self.after(model.norm, -1, "final.norm"),
                 self.model.lm_head.register_forward_hook(self.logits_hook)]
        for i, layer in enumerate(model.layers):
            found += self.layer_hooks(i, layer)
        return found

    def layer_hooks(self, i: int, layer: nn.Module) -> list:
        attn = layer.self_attn
        found = [
            attn.register_forward_pre_hook(lambda *_: setattr(self, "layer", i)),
            self.after(layer.input_layernorm, i, "attn.norm"),
            self.after(attn.q_proj, i, "attn.q", self.heads, attn.head_dim),
            self.after(attn.k_proj, i, "attn.k", self.kv_heads, attn.head_dim),
            self.after(attn.v_proj, i, "attn.v", self.kv_heads, attn.head_dim),
            self.after(attn.o_proj, i, "attn.o"),
            self.before(layer.post_attention_layernorm, i, "attn.residual"),
            self.after(layer.post_attention_layernorm, i, "mlp.norm"),
            self.after(layer, i, "mlp.residual")]
        if hasattr(attn, "q_norm"):
            found += [self.after(attn.q_norm, i, "attn.q_norm"),
                      self.after(attn.k_norm, i, "attn.k_norm")]
        if hasattr(layer.mlp, "experts"):
            return found + self.expert_hooks(i, layer.mlp)
        return found + [self.after(layer.mlp.gate_proj, i, "mlp.gate"),
                        self.after(layer.mlp.up_proj, i, "mlp.up"),
                        self.before(layer.mlp.down_proj, i, "mlp.act"),
                        self.after(layer.mlp.down_proj, i, "mlp.down")]

    def after(self, module: nn.Module, layer: int, point: str, *shape: int):
        """Records what the module returns."""
        def hook(_module, _args, result):
            self.show(layer, point, result, *shape)
        return module.register_forward_hook(hook)

    def before(self, module: nn.Module, layer: int, point: str):
        """Records what the module is given."""
        def hook(_module, args):
            self.show(layer, point, args[0])
        return module.register_forward_pre_hook(hook)

    def logits_hook(self, _module, _args, result: Tensor) -> None:
        rows = result.detach()
        if rows.shape[:2] == self.keep.shape:
            rows = rows[self.keep][self.run.logit_rows]
        self.put(-1, "logits", rows.reshape(-1, rows.shape[-1]))

    def expert_hooks(self, i: int, mlp: nn.Module) -> list:
        """The points of an MLP of experts: its own forward shows no tensor of a single expert."""
        mode: list[SeenLinears] = []

        def routed(_module, _args, result):
            for point, tensor in zip(("mlp.router", "mlp.weights", "mlp.experts"), result):
                kind = torch.int32 if point == "mlp.experts" else tensor.dtype
                self.put_rows(i, point, tensor.to(kind))

        def begin(_module, args):
            mode.append(self.expert_linears(i, mlp.experts, args[1]))
            mode[-1].__enter__()

        def end(_module, _args, result):
            mode.pop().__exit__(None, None, None)
            self.put_rows(i, "mlp.combine", result)
            for point in EXPERT_POINTS:
                self.put_rows(i, point, self.run.tensors[i, point])

        return [mlp.gate.register_forward_hook(routed),
                mlp.experts.register_forward_pre_hook(begin),
                mlp.experts.register_forward_hook(end)]

    def expert_linears(self, i: int, experts: nn.Module, chosen: Tensor) -> SeenLinears:
        """Sorts the rows of each expert's linear ops by token and choice."""
        inner = experts.intermediate_dim
        gate_up = {experts.gate_up_proj[e].data_ptr(): e for e in range(experts.num_experts)}
        down = {experts.down_proj[e].data_ptr(): e for e in range(experts.num_experts)}

        def place(point: str, expert: int, rows: Tensor) -> None:
            choice, token = torch.where((chosen == expert).T)
            kept = self.run.tensors.setdefault(
                (i, point), torch.zeros(*chosen.shape, rows.shape[-1], dtype=rows.dtype))
            kept[token, choice] = rows.detach()

        def seen(x: Tensor, weight: Tensor, made: Tensor) -> None:
            if weight.data_ptr() in gate_up:
                expert = gate_up[weight.data_ptr()]
                place("mlp.expert_gate", expert, made[:, :inner])
                place("mlp.expert_up", expert, made[:, inner:])
            else:
                expert = down[weight.data_ptr()]
                place("mlp.expert_act", expert, x)
                place("mlp.expert_down", expert, made)

        return SeenLinears(seen)


def places_seen(run: Pass) -> set[Place]:
    """Where the pass has tensors."""
    return set(run.tensors) | {(layer, "attn.kv") for layer, _ in run.caches}
