"""The command over ranks, as tests call it: `python X_test.py LOCKSTEP DATA`."""
import json
import pathlib
import random
import struct
import subprocess
import sys
import time

LOCKSTEP, DATA = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
PROMPTS = ["--tokens", "5,17,300,2,31,90,44", "--tokens", "7,8"]


def run(model, *options, prompts=PROMPTS, max_new=3):
    """The result as data, its exit status and what stood on stderr. model: a name of DATA, or a
    path."""
    done = subprocess.run([LOCKSTEP, "run", "--model", DATA / model, "--max-new", str(max_new),
                           "--ignore-eos", *prompts, "--format", "json", *map(str, options)],
                          capture_output=True, text=True, timeout=120)
    result = json.loads(done.stdout) if done.stdout else None
    return result, done.returncode, done.stderr


def tokens(result):
    return [request["tokens"] for request in result["requests"]]


def write_model(folder, heads, kv_heads, vocab=320, hidden=64, inner=128):
    """A checkpoint of two layers with random weights, for numbers of heads that no other has."""
    folder = pathlib.Path(folder)
    dim = hidden // heads
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
              "num_hidden_layers": 2, "num_attention_heads": heads, "head_dim": dim,
              "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000,
              "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
              "eos_token_id": 0, "torch_dtype": "bfloat16"}
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm": (hidden,), at + "post_attention_layernorm": (hidden,),
                   at + "self_attn.q_proj": (heads * dim, hidden), at + "self_attn.q_norm": (dim,),
                   at + "self_attn.k_proj": (kv_heads * dim, hidden),
                   at + "self_attn.k_norm": (dim,),
                   at + "self_attn.v_proj": (kv_heads * dim, hidden),
                   at + "self_attn.o_proj": (hidden, heads * dim),
                   at + "mlp.gate_proj": (inner, hidden), at + "mlp.up_proj": (inner, hidden),
                   at + "mlp.down_proj": (hidden, inner)}
    draw, header, data = random.Random(1), {}, bytearray()
    for name, shape in shapes.items():
        count, first = shape[0] * (shape[1] if len(shape) > 1 else 1), len(data)
        middle, spread = (0, shape[1] ** -0.5) if len(shape) > 1 else (1, 0.1)
        values = struct.pack(f"<{count}f", *(draw.gauss(middle, spread) for _ in range(count)))
        for i in range(0, len(values), 4):
            data += values[i + 2:i + 4]  # the upper half of fp32 is bf16
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape,
                                    "data_offsets": [first, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def build_gate(folder):
    """A user's op that stands still (gate.c), as a library of that folder."""
    library = f"{folder}/gate.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{DATA.parent.parent}", "-o", library,
                    pathlib.Path(__file__).with_name("gate.c")], check=True)
    return library


def wait_for(what, seconds=30):
    """What it returns, as soon as that is something."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    raise SystemExit(f"nothing came of {what}")


def standing_at(gate):
    """The processes that stand still there."""
    gate = pathlib.Path(gate)
    return [int(file.suffix[1:]) for file in gate.parent.glob(f"{gate.name}.*")]


class Checks:
    """Counts what was checked: a test that checked nothing fails."""

    def __init__(self):
        self.done, self.failed = 0, []

    def that(self, ok, what):
        self.done += 1
        if not ok:
            self.failed.append(what)
            print("FAILED:", what)

    def clean(self, what, result, status, err=""):
        """The run is clean and judged every node of it."""
        self.that(status == 0 and result and result["verdict"] == "clean",
                  f"{what}: {result['story'] if result else err}")
        if result:
            nodes = result["nodes"]
            self.that(nodes["expected"] == nodes["judged"] > 0, f"{what}: {nodes}")

    def end(self, least):
        print(f"{self.done} checks, {len(self.failed)} failed")
        sys.exit(1 if self.failed or self.done < least else 0)
