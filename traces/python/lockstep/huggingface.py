"""Captures what a Hugging Face model computes as a trace, without changing a bit of it."""
from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep import experts
from lockstep.blocks import ROOM_BYTES, Layout, Place, Room, elements_in, narrowed
from lockstep.caches import CacheHashes, LayerCache, joined
from lockstep.elements import Elements, elements_of, name_of
from lockstep.errors import LockstepError, check
from lockstep.experts import ExpertRows
from lockstep.graph import FAMILIES, dimensions, read_config
from lockstep.patches import AttentionFunctions, modeling_of, replaced
from lockstep.run_facts import Generation, facts_of, generation_of, rounding_of, selection_of
from lockstep.selecting import layers_of, points_of
from lockstep.sessions import Call, RequestPositions, Sessions
from lockstep.writer import Writer

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
CONTIGUOUS = torch.contiguous_format
WRITTEN = ("attn.k_rope", "attn.v")  # what goes into a cache

@contextlib.contextmanager
def capture(model: nn.Module, path: str | os.PathLike[str], *, points: str | Collection[str] = (),
            layers: int | str | Collection[int] = (), provenance: Mapping[str, str] | None = None,
            request_positions: RequestPositions | None = None, device_digests: bool = False,
            ) -> Iterator[Capture]:
    """While the block lasts, all that the model computes is written as a trace.

        with lockstep.capture(model, "run.h5"):
            model.generate(**inputs, max_new_tokens=8)

    model: a Qwen2, Qwen3 or Qwen3-MoE of transformers. Its calls may be of generate or of your own
    loop, prefill and decode, with a dynamic or a static cache, without one, in batches with
    padding; each row of a batch that begins with an empty cache is a new request. The model
    computes the same bits as without, and is as before when the block ends, however it does; after
    an exception there is no trace.

    points, layers: these alone, as a list or as the command line has them ("attn.*,logits" and
    "0,3-5"); none: all. provenance: facts to keep beside its own.

    request_positions: for batches of which a row holds several requests, as of packed sequences,
    or whose rows the caller knows better. It is called with the arguments of each call, by name,
    and returns the request and the position of each token, [batch, column] both; a request below 0
    is padding. device_digests: digests alone are kept, statistics and hashes of each tensor, which
    can be held to another run's (`lockstep diff`) and take about 2 kB a tensor.
    """
    found = Capture(model, path, points, layers, provenance or {}, request_positions,
                    device_digests)
    with found.writer:
        with found.watching():
            yield found
        found.end_pass()


class Beside(NamedTuple):
    """What a pass shows beside blocks: logits, or a cache as attention reads it."""

    at: int                       # among all that the pass shows with it
    place: Place
    seen: Tensor | LayerCache


class Capture:
    """A trace in the making; `writer` has the passes that were computed so far."""

    def __init__(self, model: nn.Module, path: str | os.PathLike[str],
                 points: str | Collection[str], layers: int | str | Collection[int],
                 provenance: Mapping[str, str],
                 request_positions: RequestPositions | None = None, digests_only: bool = False,
                 ) -> None:
        config = getattr(model, "config", None)
        check(config is not None, f"a {type(model).__name__} is no Hugging Face model, which has a "
              "config: a Qwen2, Qwen3 or Qwen3-MoE of transformers was wanted")
        config = read_config(config)
        family = config.get("model_type")
        check(family in FAMILIES, f"the model is a {family}: capture knows {', '.join(FAMILIES)}")
        dtype = next(model.parameters()).dtype
        check(dtype in NAMES, f"the model is of {dtype}: fp32, bf16 or fp16 was wanted")
        self.model, self.base = model, getattr(model, "model", model)
        sizes = dimensions(config)
        self.heads, self.kv_heads, self.dim = sizes["H"], sizes["K"], sizes["D"]
        self.points, self.layers = points_of(points), layers_of(layers, sizes["L"])
        self._everything = not self.points and not self.layers
        self._signature = inspect.signature(self.base.forward)
        self.writer = Writer(path, config, dtype=NAMES[dtype], schema=rounding_of(model),
                             provenance=facts_of(model) | dict(provenance),
                             selection=selection_of(self.points, self.layers),
                             digests_only=digests_only)
        self._request_positions = request_positions
        self._sessions, self._caches = Sessions(), CacheHashes()
        self._generation: Generation | None = None
        self._call: Call | None = None          # the pass that is open; None: none is
        self._keep = np.zeros(0, bool)          # which rows of the batch are recorded, [row]
        self._all = True                        # every one of them
        self._logit_rows: list[int] = []        # of the pass
        self._likeliest = np.zeros(0, np.int32)  # token of each of these
        self._layer = -1                        # whose attention is computed
        # What was seen and is not shown to the writer yet, in order, and the bytes of each; where
        # they lie: those of the host together, of devices by their numbers, and some beside.
        self._queue: list[Place] = []
        self._sizes: list[int] = []
        self._queued = 0
        self._room = Room()
        self._away: list[tuple[int, Tensor]] = []
        self._beside: list[Beside] = []
        # What layers are to put into the cache, by layer and point.
        self._written: dict[tuple[int, str], Elements] = {}
        self._layouts: dict[Any, Layout] = {}  # of what passes showed so far
        self._places: dict[Any, Place] = {}

    # Passes.

    def begin_pass(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the model computes: which rows these are."""
        self._show_queue()  # of the pass before, whose session goes on now
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        ids = bound.get("input_ids")
        if ids is None:
            raise LockstepError("the model was called with embeddings and without input_ids, so "
                                "that its tokens are not known: capture it with input_ids")
        cache = bound.get("past_key_values")
        past = int(cache.get_seq_length()) if cache is not None else 0
        before = self._call
        given = None if self._request_positions is None else self._request_positions(bound)
        call = self._sessions.enter(ids, bound.get("attention_mask"), cache, past, given)
        same = before is not None and before.session is call.session
        goes_on = same and call.begin == before.begin + before.keep.shape[1]  # no draft was refused
        self.end_pass(call.session.tokens if goes_on else None)
        self._leave_out_ended(call)
        if not call.keep.any():
            return
        self._call, self._logit_rows = call, []
        self._keep = call.keep.reshape(-1)
        self._all = bool(call.keep.all())
        self.writer.begin_pass(call.token, call.position, call.request, logit_rows=[],
                               decode=self._is_decode(call))

    def end_pass(self, tokens: NDArray[np.int64] | None = None) -> None:
        """When what was chosen is known: tokens [batch, column] of the same batch."""
        self._show_queue()
        call, self._call = self._call, None
        if call is None or not self._logit_rows:
            return
        chosen = self._likeliest.copy()
        end, generation = call.begin + call.keep.shape[1], self._generation
        if generation is not None and tokens is not None and \
                tokens.shape[1] > end >= generation.prompt_columns:
            for i, row in enumerate(self._logit_rows):
                if call.column[row] != end - 1:
                    continue
                token = int(tokens[call.batch[row], end])
                if generation.likeliest:
                    chosen[i] = token
                else:  # the point token is the likeliest all the same
                    self.writer.sampled[call.request[row]] = token
        if self._wants(-1, "token"):
            self.writer.show("token", None, chosen)

    def _is_decode(self, call: Call) -> list[bool]:
        if self._generation is not None:
            return [at >= self._generation.prompt_columns for at in call.column]
        rows = collections.Counter(call.request)
        return [rows[request] == 1 and at > 0
                for request, at in zip(call.request, call.position)]

    def _leave_out_ended(self, call: Call) -> None:
        """Of a batch, generate computes sequences on that have ended: nobody sees those rows."""
        generation = self._generation
        if generation is None or call.begin < generation.prompt_columns:
            call.session.finished.clear()
        elif generation.ends:
            for b, token in enumerate(call.session.tokens[:, call.begin]):
                if int(token) in generation.ends:
                    call.session.finished.add(b)
        call.leave_out(call.session.finished)

    def _generate(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def generate(*args: Any, **kwargs: Any) -> Any:
            self.end_pass()
            self._generation = generation_of(self.model, args, kwargs)
            try:
                made = inner(*args, **kwargs)
                self.end_pass(getattr(made, "sequences", made).detach().cpu().numpy())
                return made
            finally:
                self._generation = None
        return generate

    # Tensors.

    def _wants(self, layer: int, point: str) -> bool:
        return (not self.points or point in self.points) and \
            (not self.layers or layer < 0 or layer in self.layers)

    def _needs(self, layer: int, point: str) -> bool:
        return self._wants(layer, point) or \
            (point in WRITTEN and self._wants(layer, "attn.kv"))

    def show(self, layer: int, point: str, tensor: Tensor, *shape: int) -> None:
        """The rows that are recorded of [batch, token, ...] or [batch * token, ...].

        They are copied at once: the model may write something else into the tensor's memory.
        """
        if self._call is None or not (self._everything or self._needs(layer, point)):
            return
        key = (layer, point, tensor.dtype, shape or tuple(tensor.shape[2:]))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(layer, point, name_of(tensor.dtype), key[3])
        if place.dtype == "int32":
            tensor = tensor.to(torch.int32)
        if not tensor.is_cpu:
            copy = tensor.detach().clone(memory_format=CONTIGUOUS)
            self._away.append((len(self._queue), copy))
            size = copy.nbytes
        else:
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
            size = tensor.nbytes
            if not self._room.has(size):
                self._show_queue()
            self._room.put(tensor.data_ptr(), size)
        self._queue.append(place)
        self._sizes.append(size)
        self._queued += size
        if self._queued >= ROOM_BYTES:
            self._show_queue()

    def _show_beside(self, layer: int, point: str, seen: Tensor | LayerCache) -> None:
        key = (layer, point, None, ())
        place = self._places.setdefault(key, Place(layer, point, ""))
        self._beside.append(Beside(len(self._queue), place, seen))
        self._queue.append(place)
        self._sizes.append(0)

    def _show_queue(self) -> None:
        """What the pass has so far, in its order. Tensors that lie together are one block."""
        queue, sizes, beside = self._queue, self._sizes, self._beside
        if not queue:
            return
        raw = self._from_away() if self._away else self._room.emptied()
        self._queue, self._sizes, self._beside, self._queued = [], [], [], 0
        first = self.writer.numbers(len(queue))
        if raw.size:
            self._show_block(first, queue, sizes, raw)
        for at, place, seen in beside:
            if isinstance(seen, LayerCache):
                self._show_cache(first + at, place.layer, seen)
            else:
                self.writer.show_elements(place.point, place.layer, elements_of(seen), first + at)
        self.writer.write_many()

    def _show_block(self, first: int, queue: list[Place], sizes: list[int],
                    raw: NDArray[np.uint8]) -> None:
        layout = self._layout_of(queue, sizes)
        if not self._all:
            queue, sizes, raw = narrowed(layout, raw, lambda _: True, self._keep)
            layout = self._layout_of(queue, sizes)
        for member in layout.members:
            if member.place.point in WRITTEN:
                self._written[member.place.layer, member.place.point] = elements_in(raw, member)
        if not self._everything:
            queue, sizes, raw = narrowed(layout, raw, lambda place: self._wants(place.layer,
                                                                                place.point))
            layout = self._layout_of(queue, sizes)
        if layout.members:
            self.writer.show_block(first, layout, raw)

    def _layout_of(self, queue: list[Place], sizes: list[int]) -> Layout:
        key = (tuple(queue), tuple(sizes))
        known = self._layouts.get(key)
        if known is None:
            known = self._layouts[key] = Layout(queue, sizes)
        return known

    def _from_away(self) -> NDArray[np.uint8]:
        """What is in the room, with what devices have between it."""
        here, away, at = self._room.emptied(), dict(self._away), 0
        self._away = []
        devices: dict[torch.device, list[int]] = {}
        for i, tensor in away.items():
            devices.setdefault(tensor.device, []).append(i)
        parts: dict[int, NDArray[np.uint8]] = {}
        for some in devices.values():
            flat = torch.cat([away[i].view(-1).view(torch.uint8) for i in some]).cpu().numpy()
            ends = np.cumsum([self._sizes[i] for i in some])
            parts |= zip(some, np.split(flat, ends[:-1]))
        made = []
        for i, size in enumerate(self._sizes):
            if i in parts:
                made += [parts[i], np.zeros(-size % 8, np.uint8)]
            else:
                made.append(here[at:at + size + -size % 8])
                at += size + -size % 8
        return np.concatenate(made)

    def _rope(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def look(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
            made = inner(q, k, *args, **kwargs)
            if self._layer >= 0:
                self.show(self._layer, "attn.q_rope", made[0].transpose(1, 2))
                self.show(self._layer, "attn.k_rope", made[1].transpose(1, 2))
            return made
        return look

    def _attention(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def look(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any,
                 **kwargs: Any) -> Any:
            call, layer = self._call, self._layer
            if call is not None and layer >= 0 and self._wants(layer, "attn.kv"):
                end = call.session.columns    # a static cache has room for more
                self._show_beside(layer, "attn.kv", self._caches.take(
                    call.session, layer, k[:, :, :end], v[:, :, :end]))
            made = inner(module, q, k, v, *args, **kwargs)
            if layer >= 0:
                self.show(layer, "attn.out", made[0], self.heads, self.dim)
            return made
        return look

    def _show_cache(self, at: int, layer: int, kept: LayerCache) -> None:
        """K and V as attention reads them. at: their number."""
        call = self._call
        assert call is not None
        session, caches = call.session, self._caches
        dtype = NAMES[kept.dtype]
        caches.write(layer, call.request, call.position, self._written[layer, "attn.k_rope"],
                     self._written[layer, "attn.v"])
        begin = session.columns - kept.columns  # a sliding one has let go of the first
        hashes = caches.read(kept)
        for b, request in dict.fromkeys(zip(call.batch, call.request)):
            own, columns = hashes[b], session.owner[b] == request
            some, first = columns[begin:], 0
            if begin or not some.all():
                first, own = int(columns[:begin].sum()), own[some]
            tensor, written = None, caches.written(layer, request, first + len(own))
            if written[first:].tobytes() == own.tobytes():
                # What a sliding cache has let go of is hidden by the window: it is as it was.
                first, own = 0, written
            else:
                tensor = joined(kept.halves(), b, some, dtype)
            self.writer.show_cache_hashes(layer, request, own, (self.kv_heads, self.dim),
                                          dtype, tensor, first, at)

    def _show_logits(self, _module: nn.Module, _args: Any, result: Tensor) -> None:
        """Of each row, or of the last rows of each sequence."""
        call = self._call
        if call is None:
            return
        batch, count, width = result.shape
        first = call.begin + call.keep.shape[1] - count
        self._logit_rows = [i for i, at in enumerate(call.column) if at >= first]
        at = [call.batch[i] * count + call.column[i] - first for i in self._logit_rows]
        rows = result.detach().reshape(batch * count, width)[at]
        self.writer.logits_of(self._logit_rows)
        self._likeliest = torch.argmax(rows.float(), dim=-1).to(torch.int32).cpu().numpy()
        if self._wants(-1, "logits"):
            self._show_beside(-1, "logits", rows)

    # Hooks.

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, each call of the model is recorded."""
        modeling = modeling_of(self.base)
        with contextlib.ExitStack() as stack:
            for handle in self._hooks():
                stack.callback(handle.remove)
            for module, look in self._calls():
                check(getattr(module, "_compiled_call_impl", None) is None, "a module of the model "
                      "is compiled, which leaves nothing to see: capture it as it was before")
                stack.enter_context(replaced(module, "_call_impl", look(module._call_impl)))
            for owner, name, value in (
                    (modeling, "apply_rotary_pos_emb", self._rope(modeling.apply_rotary_pos_emb)),
                    (modeling, "ALL_ATTENTION_FUNCTIONS",
                     AttentionFunctions(modeling.ALL_ATTENTION_FUNCTIONS, self._attention))):
                stack.enter_context(replaced(owner, name, value))
            if hasattr(self.model, "generate"):
                stack.enter_context(replaced(self.model, "generate",
                                             self._generate(self.model.generate)))
            if hasattr(self.model, "_valid_auto_compile_criteria"):  # compiled code has no hooks
                stack.enter_context(replaced(self.model, "_valid_auto_compile_criteria",
                                             lambda *_args, **_kwargs: False))
            yield

    def _hooks(self) -> Iterator[Any]:
        base = self.base
        yield base.register_forward_pre_hook(self.begin_pass, with_kwargs=True)
        yield base.register_forward_hook(lambda _module, _args, made: self._sessions.leave(
            getattr(made, "past_key_values", None)))
        if getattr(self.model, "lm_head", None) is not None:
            yield self.model.lm_head.register_forward_hook(self._show_logits)
        for i, layer in enumerate(base.layers):
            if hasattr(layer.mlp, "experts"):
                yield from self._expert_hooks(i, layer.mlp)

    def _calls(self) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        """What a module is called by, hooks of its own within, and what is put around that. A hook
        in the place of it would take three times as long, a hundred times a token."""
        base = self.base
        yield base.embed_tokens, self._around(-1, "embed")
        for i, layer in enumerate(base.layers):
            attn, mlp = layer.self_attn, layer.mlp
            yield layer.input_layernorm, self._around(i, "attn.norm")
            yield attn, functools.partial(self._within, i)
            yield attn.q_proj, self._around(i, "attn.q", self.heads, self.dim)
            yield attn.k_proj, self._around(i, "attn.k", self.kv_heads, self.dim)
            yield attn.v_proj, self._around(i, "attn.v", self.kv_heads, self.dim)
            if hasattr(attn, "q_norm"):
                yield attn.q_norm, self._around(i, "attn.q_norm")
                yield attn.k_norm, self._around(i, "attn.k_norm")
            yield attn.o_proj, self._around(i, "attn.o")
            yield layer.post_attention_layernorm, self._around(i, "mlp.norm", of="attn.residual")
            if not hasattr(mlp, "experts"):
                yield mlp.gate_proj, self._around(i, "mlp.gate")
                yield mlp.up_proj, self._around(i, "mlp.up")
                yield mlp.down_proj, self._around(i, "mlp.down", of="mlp.act")
            yield layer, self._around(i, "mlp.residual")
        yield base.norm, self._around(-1, "final.norm")

    def _around(self, layer: int, point: str, *shape: int, of: str = "") -> Callable[..., Any]:
        """Records what a module returns, and what it is given at the point `of`."""
        show, row = self.show, shape

        def look(inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal row
                if of:
                    show(layer, of, args[0])
                made = inner(*args, **kwargs)
                row = row or tuple(made.shape[2:])
                show(layer, point, made, *row)
                return made
            return call
        return look

    def _within(self, layer: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Knows whose attention is computed."""
        def call(*args: Any, **kwargs: Any) -> Any:
            self._layer = layer
            try:
                return inner(*args, **kwargs)
            finally:
                self._layer = -1
        return call

    def _expert_hooks(self, i: int, mlp: nn.Module) -> Iterator[Any]:
        stack, watched = contextlib.ExitStack(), []

        def routed(_module: nn.Module, _args: Any, made: Any) -> None:
            for point, tensor in zip(("mlp.router", "mlp.weights", "mlp.experts"), made):
                self.show(i, point, tensor, tensor.shape[-1])

        def begin(module: nn.Module, args: Any) -> None:
            watched.append(ExpertRows(module, args[1]))
            stack.enter_context(watched[-1].watching())

        def end(_module: nn.Module, _args: Any, made: Tensor) -> None:
            stack.close()
            rows = watched.pop()
            for point in experts.POINTS:
                if point in rows.tensors:
                    tensor = rows.shaped(point)
                    self.show(i, point, tensor, *tensor.shape[1:])
            self.show(i, "mlp.combine", made, made.shape[-1])

        yield mlp.gate.register_forward_hook(routed)
        yield mlp.experts.register_forward_pre_hook(begin)
        yield mlp.experts.register_forward_hook(end)
