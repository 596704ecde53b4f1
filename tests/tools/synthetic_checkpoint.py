"""Writes a checkpoint of a published shape with random weights: SHAPE FOLDER [--seed N].

For judging an engine at a size whose published weights are not at hand: config.json and a
model.safetensors in bf16; without a tokenizer, requests are token ids (--tokens). Matrices are
normal with a standard deviation of 1 / sqrt(columns), those that write to the residual stream
smaller, so that activations stay in the range of a trained model's through all layers. As in those,
a few channels of the stream are some twenty times larger than the others, some dims of each head
carry most of its scores, and some biases are far from 0.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import sys
import zlib

import numpy

DRAWS = 1 << 16  # of a table that is picked from: billions of draws one by one take minutes
PART = 1 << 24   # elements written at a time
OUTLIERS = 6     # channels of the stream

# hidden, layers, heads, K/V heads, head_dim, intermediate, vocabulary, tied
SHAPES = {
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936, True),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936, True),
    "qwen2.5-0.5b": (896, 24, 14, 2, 64, 4864, 151936, True),
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936, False),
}


def config_of(name, layers, vocab):
    hidden, all_layers, heads, kv_heads, head_dim, intermediate, all_ids, tied = SHAPES[name]
    qwen3 = name.startswith("qwen3")
    config = {
        "architectures": ["Qwen3ForCausalLM" if qwen3 else "Qwen2ForCausalLM"],
        "model_type": "qwen3" if qwen3 else "qwen2",
        "hidden_size": hidden, "num_hidden_layers": layers or all_layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate, "vocab_size": vocab or all_ids,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "tie_word_embeddings": tied, "hidden_act": "silu", "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    }
    return config | ({"head_dim": head_dim, "attention_bias": False} if qwen3 else {})


def tensors_of(config):
    """Name -> shape, in the order of the file."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    tensors = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = (hidden,)
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[at + f"self_attn.{part}_proj.weight"] = (rows * dim, hidden)
            if config["model_type"] == "qwen2":
                tensors[at + f"self_attn.{part}_proj.bias"] = (rows * dim,)
            elif part != "v":
                tensors[at + f"self_attn.{part}_norm.weight"] = (dim,)
        tensors[at + "self_attn.o_proj.weight"] = (hidden, heads * dim)
        tensors[at + "post_attention_layernorm.weight"] = (hidden,)
        tensors[at + "mlp.gate_proj.weight"] = (inner, hidden)
        tensors[at + "mlp.up_proj.weight"] = (inner, hidden)
        tensors[at + "mlp.down_proj.weight"] = (hidden, inner)
    tensors["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    return tensors


def to_bf16(values):
    """Bits of fp32 values rounded to nearest even; they are finite."""
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


class Weights:
    def __init__(self, config, seed):
        self.config, self.seed = config, seed
        hidden = config["hidden_size"]
        self.outliers = numpy.random.default_rng(seed).choice(hidden, OUTLIERS, replace=False)

    def random(self, name):
        return numpy.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def vector(self, name, count):
        normal = self.random(name).standard_normal(count)
        if name.endswith("bias"):
            values = normal * (0.1 if "v_proj" in name else 1)
            if "v_proj" not in name:
                values[:: count // 4] *= 20
        elif "q_norm" in name or "k_norm" in name:
            values = 1 + 0.2 * normal
            values[:2] *= 4
        else:
            values = (2 if name == "model.norm.weight" else 1) * (1 + 0.1 * normal)
            values[self.outliers] *= 0.3
        return to_bf16(values)

    def deviation(self, name, columns):
        if name == "model.embed_tokens.weight":
            return 0.03
        writes = name.endswith(("o_proj.weight", "down_proj.weight"))
        return 1 / math.sqrt(columns * (2 * self.config["num_hidden_layers"] if writes else 1))

    def matrix_parts(self, name, rows, columns):
        """Its bits, some rows at a time."""
        random = self.random(name)
        draws = (random.standard_normal(DRAWS) * self.deviation(name, columns)).astype("float32")
        layer = min(2, self.config["num_hidden_layers"] - 1)
        large = {}
        if name == f"model.layers.{layer}.mlp.down_proj.weight":
            large = {int(row): 300 for row in self.outliers}
        step = max(1, PART // columns)
        table = to_bf16(draws)
        for first in range(0, rows, step):
            shape = (min(step, rows - first), columns)
            part = table[random.integers(0, DRAWS, shape, numpy.uint16)]
            for row, times in large.items():
                if first <= row < first + shape[0]:
                    values = draws[random.integers(0, DRAWS, columns)]
                    part[row - first] = to_bf16(values * times)
            yield part

    def parts(self, name, shape):
        return [self.vector(name, *shape)] if len(shape) == 1 else self.matrix_parts(name, *shape)


def write_weights(path, weights, tensors):
    header, at = {}, 0
    for name, shape in tensors.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)

    def write(name):
        with open(path, "r+b") as file:
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            for part in weights.parts(name, tensors[name]):
                file.write(part.tobytes())

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(write, tensors))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, help="fewer layers than the published model has")
    parser.add_argument("--vocab", type=int, help="a smaller vocabulary")
    options = parser.parse_args()
    if any(n is not None and n < 1 for n in (options.layers, options.vocab)):
        sys.exit("a number of 1 or more was wanted for --layers and --vocab: leave out what should "
                 "be as published")
    options.folder.mkdir(parents=True, exist_ok=True)
    config = config_of(options.shape, options.layers, options.vocab)
    (options.folder / "config.json").write_text(json.dumps(config, indent=1))
    weights = Weights(config, options.seed)
    write_weights(options.folder / "model.safetensors", weights, tensors_of(config))


if __name__ == "__main__":
    main()
