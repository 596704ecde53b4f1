"""The traces that are edited: each is made by `lockstep generate`, and right, but for three."""
from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import trace_file
from checkpoint import Checkpoint, altered

GREEDY = ["--prompt", "ROMEO: But soft, what light", "--prompt", "To be, or not", "--prompt", "O",
          "--chunk", "3", "--page-size", "4", "--page-order", "3", "--max-new", "4"]
SHORT = ["--prompt", "To be, or", "--prompt", "O Romeo", "--max-new", "3"]
SHARED = ["--prompt", "To be, or not to be, that is", "--prompt", "To be, or not to be, so it is",
          "--page-size", "2", "--max-new", "3"]
BARD = "bard-qwen3"
TOKENS = ["--tokens", "189,25,129,256,11,47,126", "--tokens", "110,30,11,55,33", "--tokens", "46",
          *GREEDY[GREEDY.index("--chunk"):]]


@dataclass(frozen=True)
class Base:
    model: str
    arguments: list[str] = field(default_factory=list)
    suffix: str = ".h5"


BASES = {
    # Three ragged requests, chunks, pages in another order.
    "greedy": Base(BARD, GREEDY),
    "sampled": Base(BARD, ["--prompt", "ROMEO: But soft", "--prompt", "To be, or", "--max-new",
                           "5", "--temperature", "1.2", "--seed", "7", "--page-size", "4"]),
    "prefix": Base(BARD, [*SHARED, "--prefix-cache", "--max-batch", "1"]),
    "samples": Base(BARD, ["--prompt", "To be, or not to be, that", "--samples", "3", "--page-size",
                           "4", "--temperature", "1.5", "--seed", "3", "--max-new", "3"]),
    "recompute": Base(BARD, ["--prompt", "To be, or not to be", "--prompt", "ROMEO: But soft",
                             "--page-size", "2", "--pages", "9", "--max-new", "8"]),
    "swap": Base(BARD, ["--prompt", "To be, or not to be", "--prompt", "ROMEO: But soft",
                        "--page-size", "2", "--pages", "9", "--max-new", "8", "--preempt",
                        "swap"]),
    # Ends before its time.
    "stop": Base(BARD, ["--prompt", "To be, or not", "--stop", "o", "--max-new", "8"]),
    "forced": Base(BARD, ["--prompt", "To be, or", "--force", "5,6,7,9", "--max-new", "4"]),
    "fp16": Base(BARD, [*SHORT, "--dtype", "fp16"]),
    "fp32": Base(BARD, [*SHORT, "--dtype", "fp32"]),
    "qwen2": Base("bard-qwen2.5", SHORT),
    "moe": Base("tiny/qwen3-moe", ["--tokens", "1,2,3,4,5", "--tokens", "9,8,7", "--max-new",
                                   "4"]),
    "folder": Base(BARD, ["--prompt", "To be", "--max-new", "11"], ".trace"),
    "selected": Base(BARD, [*SHORT, "--layers", "0-3"]),
    # Runs of a copy of the checkpoint that is not what it was.
    "eps": Base(BARD, SHORT),
    "theta": Base(BARD, SHORT),
    "weights": Base(BARD, SHORT),
}
# In the place of these where some edits of each kind are tried: the judge takes half as long.
QUICK = {"greedy": Base("tiny/qwen3-default", TOKENS), "eps": Base("tiny/qwen3-default", TOKENS)}


def _more_eps(config: dict) -> None:
    config["rms_norm_eps"] = 1e-2


def _half_theta(config: dict) -> None:
    config["rope_parameters"]["rope_theta"] /= 2


class BaseTraces:
    """Makes base traces on demand, in a folder."""

    def __init__(self, lockstep: Path, data: Path, folder: Path, quick: bool = False) -> None:
        self.lockstep, self.data, self.folder = lockstep, data, folder
        self.bases = BASES | QUICK if quick else BASES

    def model(self, name: str) -> Path:
        """The checkpoint that a base is judged against."""
        return self.data / self.bases[name].model

    def path(self, name: str) -> Path:
        path = self.folder / f"{name}{self.bases[name].suffix}"
        if not path.exists():
            model = self._model_of_run(name)
            self._generate(name, model, path)
            if model != self.model(name):
                self._hide(path)
        return path

    def _model_of_run(self, name: str) -> Path:
        source, copy = self.model(name), self.folder / f"model-{name}"
        change = {"eps": _more_eps, "theta": _half_theta}.get(name)
        if change is not None:
            return altered(source, copy, change)
        if name == "weights":
            altered(source, copy, None)
            Checkpoint(copy).scale("model.layers.2.mlp.up_proj.weight", 5, 1.5)
            return copy
        return source

    def _generate(self, name: str, model: Path, path: Path) -> None:
        command: list[str | Path] = [self.lockstep, "generate", "--model", model,
                                     *self.bases[name].arguments, "--ignore-eos", "--format",
                                     "json", "--threads", "1", "--keep", "full", "--trace", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {' '.join(map(str, command))}: {done.stderr}")

    def _hide(self, path: Path) -> None:
        """Lets a trace say that it is of the checkpoint that it is judged against."""
        right = trace_file.load(self.path("greedy")).provenance
        trace = trace_file.load(path)
        trace.provenance |= {name: right[name] for name in right if name.startswith("model")
                             or name == "weights_xxh3"}
        trace_file.save(trace, path)
