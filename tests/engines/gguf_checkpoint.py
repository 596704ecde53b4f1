"""Hugging Face checkpoints of Qwen2 and Qwen3 as GGUF, without a tokenizer: tokens are given."""
import json
import pathlib

import gguf
import numpy as np
from lockstep.dumps.safetensors_file import read_safetensors
from safetensors.numpy import save_file

TYPES = {"fp32": gguf.GGMLQuantizationType.F32, "fp16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
# By part of a layer in Hugging Face's name: what GGUF calls it.
PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_weights(folder):
    """The tensors of a checkpoint by Hugging Face's names, as fp32, which holds them exactly."""
    return {name: load().values() for file in sorted(pathlib.Path(folder).glob("*.safetensors"))
            for name, load in read_safetensors(file).items()}


def gguf_name(name):
    """model.layers.3.self_attn.q_proj.weight is blk.3.attn_q.weight."""
    stem, _, kind = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def write_gguf(path, config, weights, dtype):
    """Writes them with matrices in `dtype`, and vectors in fp32, as llama.cpp's converter does.

    Q and K keep their order: llama.cpp turns the pairs of these families half a head apart too.
    """
    writer = gguf.GGUFWriter(str(path), config["model_type"])
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for name, factor in config.get("gguf_rope_scaling", {}).items():
        writer.add_rope_scaling_type(gguf.RopeScalingType(name))
        writer.add_rope_scaling_factor(factor)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in weights.items():
        kind = TYPES[dtype] if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(tensor), kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_checkpoint(folder, config, weights):
    """The same numbers for the judge, in fp32: matrices rounded to fp16 as GGUF has them."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    tensors = {name: tensor.astype(np.float16).astype(np.float32) if tensor.ndim > 1 else tensor
               for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
