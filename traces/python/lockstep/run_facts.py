"""What a trace has to know of a model of transformers, and of a call of generate."""
from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from lockstep.contracts import rounding
from lockstep.errors import check


def rounding_of(model: nn.Module) -> dict[str, str]:
    """Where each point of the model rounds inside, as transformers computes it."""
    attention = getattr(model.config, "_attn_implementation", "")
    schema = rounding("eager" if attention == "eager" else "hf")
    if getattr(model.config, "_experts_implementation", None) in ("batched_mm", "grouped_mm"):
        schema["mlp.combine"] = "products_rounded"
    return schema


def selection_of(points: Collection[str], layers: Collection[int]) -> str:
    parts = [("points", ",".join(sorted(points))), ("layers", ",".join(map(str, sorted(layers))))]
    return " ".join(f"{name} {text}" for name, text in parts if text)


def facts_of(model: nn.Module) -> dict[str, str]:
    import transformers
    device = next(model.parameters()).device
    facts = {"engine": "transformers", "engine_version": transformers.__version__,
             "torch_version": str(torch.__version__), "device": str(device),
             "model": str(getattr(model, "name_or_path", "")),
             "attention": str(getattr(model.config, "_attn_implementation", ""))}
    if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        facts["accumulator"] = "tf32"
    return facts


@dataclasses.dataclass(frozen=True)
class Generation:
    """A call of generate: where its own tokens begin, and how it chooses them."""

    prompt_columns: int
    likeliest: bool        # greedy, and nothing changes the logits before
    ends: frozenset[int]   # tokens after which a sequence is computed on as padding alone


# Fields of a generation config that change which token is the likeliest, with what changes none.
PROCESSORS: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1.0), "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0), "bad_words_ids": (None,), "sequence_bias": (None,),
    "min_length": (None, 0), "min_new_tokens": (None, 0), "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,), "suppress_tokens": (None,), "begin_suppress_tokens": (None,),
    "exponential_decay_length_penalty": (None,), "guidance_scale": (None, 1.0),
    "do_sample": (None, False), "logits_processor": (None, [])}


def generation_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
                  ) -> Generation:
    config = kwargs.get("generation_config") or model.generation_config

    def option(name: str) -> Any:
        return kwargs[name] if name in kwargs else getattr(config, name, None)

    check((option("num_beams") or 1) == 1 and kwargs.get("assistant_model") is None,
          "generate was asked for beams or an assistant, whose rows change their sequence: capture "
          "it with num_beams=1 and no assistant")
    likeliest = all(option(name) in plain for name, plain in PROCESSORS.items())
    check(likeliest or not option("prompt_lookup_num_tokens"),
          "generate was asked to look tokens up in the prompt and not to take the likeliest, and "
          "which ones it took is not known where it refused others: capture it with "
          "do_sample=False and no processor of logits, or without prompt_lookup_num_tokens")
    ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
    ends = option("eos_token_id")
    ends = [ends] if isinstance(ends, int) else [] if ends is None else list(ends)
    return Generation(0 if ids is None else int(ids.shape[1]), likeliest,
                      frozenset(int(end) for end in ends))
