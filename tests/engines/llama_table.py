"""llama.cpp on both checkpoints, in each type of weights: what the judge says of it.

python llama_table.py LOCKSTEP [FOLDER]. Right runs under the contract that the preset of the type
has, and wrong ones: GGUF files that say something else than the checkpoint.
"""
import copy
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = [str(7919 * i % 3000 + 5) for i in range(40)]
sys.path.insert(0, str(HERE.parents[1] / "traces/python"))
import llama_cpp  # noqa: E402
import lockstep  # noqa: E402
from gguf_checkpoint import read_weights, write_checkpoint, write_gguf  # noqa: E402
from llama_run import Way, quiet, run  # noqa: E402

MODELS = ("bard-qwen2.5", "bard-qwen3")
PRESETS = {"fp32": "llama.cpp-f32", "fp16": "llama.cpp-f16", "bf16": "llama.cpp",
           "q8_0": "llama.cpp-f32"}
# Each way to compute, and how it rounds otherwise than its preset. Flash attention casts K and V to
# fp16 whatever the cache is.
WAYS = {
    "flash, cache fp16": (Way(flash=True), ()),
    "flash, cache fp32": (Way(flash=True, cache="fp32"), ()),
    "cache fp16": (Way(), ("--rounding", "attn.out=operands_fp16")),
    "cache fp32": (Way(cache="fp32"), ("--rounding", "attn.out=fused")),
    "flash, ubatch 48": (Way(flash=True, ubatch=48), ()),
    "flash, 2 threads": (Way(flash=True, threads=2), ()),
}


@dataclasses.dataclass
class Made:
    """What llama.cpp is given: a configuration and weights that may be changed."""

    config: dict
    weights: dict


def rope_base(made):
    made.config["rope_parameters"]["rope_theta"] = 500000.0


def norm_eps(made):
    made.config["rms_norm_eps"] = 1e-5


def weight_of_another_layer(made):
    name = "model.layers.{}.mlp.up_proj.weight"
    made.weights[name.format(3)] = made.weights[name.format(2)]


def rope_scaling(made):
    made.config["gguf_rope_scaling"] = {"linear": 2.0}


def q_interleaved(made):
    """As converters of Llama put the rows of q, whose pairs lie beside each other."""
    for layer in range(made.config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        weight = made.weights[name]
        heads = made.config["num_attention_heads"]
        split = weight.reshape(heads, 2, -1, weight.shape[1])
        made.weights[name] = split.swapaxes(1, 2).reshape(weight.shape)


def k_head_twice(made):
    name = "model.layers.4.self_attn.k_proj.weight"
    weight = made.weights[name].copy()
    half = len(weight) // 2
    weight[half:] = weight[:half]
    made.weights[name] = weight


# What is wrong, and the place that is to be named.
WRONG = {rope_base: "layer 0 attn.q_rope", norm_eps: "layer 0 attn.norm",
         weight_of_another_layer: "layer 3 mlp.up", rope_scaling: "layer 0 attn.q_rope",
         q_interleaved: "layer 0 attn.q", k_head_twice: "layer 4 attn.k"}


class Table:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.failed = binary, folder, 0
        self.silent = quiet()

    def judged(self, model, dtype, way, options, change=None):
        """What the judge says of a run; the checkpoint that it is held to is never changed."""
        made = self.made(model)
        truth = str(HERE.parent / "data" / model)
        if dtype == "fp16":
            truth = str(self.folder / "fp16" / model)
            if not pathlib.Path(truth).exists():
                pathlib.Path(truth).parent.mkdir(exist_ok=True)
                write_checkpoint(truth, made.config, made.weights)
        if change:
            change(made)
        for path in ("dump", "x.h5", "m.gguf"):
            shutil.rmtree(self.folder / path, ignore_errors=True)
            (self.folder / path).unlink(missing_ok=True)
        write_gguf(self.folder / "m.gguf", made.config, made.weights, dtype)
        run(self.folder / "m.gguf", self.folder / "dump", way)
        report = lockstep.import_dump(self.folder / "dump", self.folder / "x.h5",
                                      names="llama.cpp", model=truth)
        assert not report.skipped and not report.unknown, str(report)
        return lockstep.judge(self.folder / "x.h5", truth, "--schema", PRESETS[dtype], *options,
                              command=self.binary)

    @staticmethod
    def made(model):
        folder = HERE.parent / "data" / model
        return Made(json.loads((folder / "config.json").read_text()),
                    copy.copy(read_weights(folder)))

    def say(self, right, *words):
        self.failed += not right
        print("   " if right else "NOT", *words, flush=True)

    def rights(self):
        for model in MODELS:
            for dtype in ("fp32", "fp16", "bf16"):
                for name, (way, options) in WAYS.items():
                    found = self.judged(model, dtype, way, options)
                    nodes = f"{found.judged} of {found.expected} nodes"
                    self.say(bool(found), f"{model:13}{dtype:5}{name:18}", found.verdict, nodes,
                             "" if found else found.story)

    def wrongs(self):
        for model in MODELS:
            for change, place in WRONG.items():
                found = self.judged(model, "bf16", *WAYS["flash, cache fp16"], change)
                named = found.first.place if found.first else found.verdict
                self.say(named == place, f"{model:13}bf16 {change.__name__:26}", named)

    def outside(self):
        """Blocks of integers are no weights of the checkpoint: the first product says so."""
        for model in MODELS:
            found = self.judged(model, "q8_0", *WAYS["flash, cache fp16"])
            named = found.first.place if found.first else found.verdict
            self.say(found.status == 1, f"{model:13}q8_0  outside:", named)


    def hooked(self):
        """traces/examples/llama_cb_eval.c, which has the callback write a trace itself."""
        library, program = pathlib.Path(llama_cpp.__file__).parent / "lib", self.folder / "hooked"
        headers = next(library.parents[1].rglob("llama.h")).parent
        root = HERE.parents[1]
        subprocess.run(["cc", "-std=c99", "-Wall", "-Werror",
                        root / "traces/examples/llama_cb_eval.c", "-o", program, f"-I{root}",
                        f"-I{headers}", f"-L{library}", "-lllama",
                        "-lggml", "-lggml-base", f"-L{self.binary.parent}", "-llockstep_trace",
                        f"-Wl,-rpath,{library}:{self.binary.parent}"], check=True)
        for model in MODELS:
            made, truth = self.made(model), HERE.parent / "data" / model
            for dtype in ("fp32", "bf16"):
                (self.folder / "x.h5").unlink(missing_ok=True)
                write_gguf(self.folder / "m.gguf", made.config, made.weights, dtype)
                subprocess.run([program, self.folder / "m.gguf", truth, self.folder / "x.h5",
                                *TOKENS], check=True, stderr=subprocess.DEVNULL)
                found = lockstep.judge(self.folder / "x.h5", truth, "--schema", PRESETS[dtype],
                                       command=self.binary)
                nodes = f"{found.judged} of {found.expected} nodes"
                self.say(bool(found), f"{model:13}{dtype:5}by its C callback ", found.verdict,
                         nodes, "" if found else found.story)


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        table = Table(binary, pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else folder))
        table.rights()
        table.wrongs()
        table.outside()
        table.hooked()
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
