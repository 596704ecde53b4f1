"""A checkpoint of one layer, whose weights are zero but for those that one op reads."""
from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

from lockstep.elements import elements_of

NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
                 "qwen3_moe": "Qwen3MoeForCausalLM"}
LAYER = "model.layers.0."


def config_of(family: str, dtype: str, **fields: Any) -> dict[str, Any]:
    """A config.json of one layer, of no more than its op needs."""
    config = {
        "architectures": [ARCHITECTURES[family]], "model_type": family, "dtype": dtype,
        "hidden_act": "silu", "hidden_size": 2, "head_dim": 2, "num_attention_heads": 1,
        "num_key_value_heads": 1, "num_hidden_layers": 1,
        "intermediate_size": 2, "vocab_size": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "attention_bias": False, "use_sliding_window": False, "sliding_window": None}
    if family == "qwen3_moe":
        config |= {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 2,
                   "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}
    return config | fields


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of every weight that a checkpoint with that config has."""
    hidden, dim = config["hidden_size"], config["head_dim"]
    query, key = (config[f"num_{kind}_heads"] * dim for kind in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
        LAYER + "input_layernorm.weight": (hidden,),
        LAYER + "post_attention_layernorm.weight": (hidden,),
        LAYER + "self_attn.q_proj.weight": (query, hidden),
        LAYER + "self_attn.k_proj.weight": (key, hidden),
        LAYER + "self_attn.v_proj.weight": (key, hidden),
        LAYER + "self_attn.o_proj.weight": (hidden, query)}
    if config["model_type"] == "qwen2":
        shapes |= {LAYER + f"self_attn.{part}_proj.bias": (size,)
                   for part, size in (("q", query), ("k", key), ("v", key))}
    else:
        shapes |= {LAYER + f"self_attn.{part}_norm.weight": (dim,) for part in "qk"}
    prefixes, width = [LAYER + "mlp."], config["intermediate_size"]
    if config["model_type"] == "qwen3_moe":
        shapes[LAYER + "mlp.gate.weight"] = (config["num_experts"], hidden)
        prefixes = [f"{LAYER}mlp.experts.{i}." for i in range(config["num_experts"])]
        width = config["moe_intermediate_size"]
    for prefix in prefixes:
        shapes |= {prefix + "gate_proj.weight": (width, hidden),
                   prefix + "up_proj.weight": (width, hidden),
                   prefix + "down_proj.weight": (hidden, width)}
    return shapes


def write_checkpoint(folder: pathlib.Path, config: Mapping[str, Any],
                     weights: Mapping[str, Any]) -> None:
    """config.json and model.safetensors; weights that are not given are zero."""
    import torch
    zero = getattr(torch, config["dtype"])
    header, parts, end = {}, [], 0
    for name, shape in shapes_of(config).items():
        tensor = weights.get(name)
        elements = elements_of(torch.zeros(shape, dtype=zero) if tensor is None else tensor)
        begin, end = end, end + elements.nbytes
        header[name] = {"dtype": NAMES[elements.dtype], "shape": list(shape),
                        "data_offsets": [begin, end]}
        parts.append(elements.bits.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)
