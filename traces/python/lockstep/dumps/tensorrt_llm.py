"""TensorRT-LLM: the executor's npy folders, and the PyTorch backend's hooks."""
from __future__ import annotations

import functools
import pathlib
import re

from lockstep.dumps.dump import Dump, of_ranks, one_tensor
from lockstep.errors import check

HOOK = re.compile(r"(?P<path>\d+\.\w+(-\d+\.\w+)*)-(?P<side>input|output)\.(?P<name>\w+)\.pt")


def is_executor(path: pathlib.Path) -> bool:
    return path.is_dir() and any(True for folder in path.rglob("iteration_*")
                                 if any(folder.glob("*.npy")))


def read_executor(path: pathlib.Path) -> Dump:
    """PP_1/TP_1/iteration_0/transformer.layers.0.mlp_output.npy, of which bf16 is widened."""
    folders = [folder for folder in path.rglob("iteration_*") if folder.is_dir()]
    check(len({folder.parent for folder in folders}) == 1, f"{path} has the folders of several "
          "runs: name one of them")
    # The names hold sizes: all ranks write to one folder, and the last one wins.
    shared = re.search(r"[TP]P_(?!1/)\d+/", f"{folders[0]}/")
    check(shared is None, f"{path} is of a model that ranks shared, of which each wrote over the "
          "files of the others: dump one of TP_1 and PP_1, or by the PyTorch backend's hooks")
    dump = Dump()
    for number, folder in enumerate(sorted(
            folders, key=lambda folder: int(folder.name.removeprefix("iteration_")))):
        for file in sorted(folder.glob("*.npy")):
            dump.add(number, file.stem, functools.partial(one_tensor, file))
    return dump


def is_hooks(path: pathlib.Path) -> bool:
    return path.is_dir() and any(HOOK.fullmatch(file.name) for file in path.rglob("*.pt"))


def read_hooks(path: pathlib.Path) -> Dump:
    """1.LlamaModel-24.LlamaDecoderLayer-2.LlamaAttention-1.Linear-output.0.pt: k.Class is the k-th
    call among its parent's children, and the first of all is the pass. Layers are counted:
    layers.22.2.LlamaAttention.1.Linear:out.0.
    """
    files = [(match, file) for file in path.rglob("*.pt") if (match := HOOK.fullmatch(file.name))]
    folders = {file.parent for _, file in files}
    ranks = {int(match[1]): folder for folder in folders
             if (match := re.fullmatch(r"rank(\d+)", folder.name))}
    if len(folders) == 1:
        ranks = {0: next(iter(folders))}
    check(len(ranks) == len(folders), f"{path} has the folders of several runs: name one of them")
    return of_ranks(path, {rank: _hooks_of([one for one in files if one[1].parent == folder])
                           for rank, folder in ranks.items()})


def _hooks_of(files: list[tuple[re.Match[str], pathlib.Path]]) -> Dump:
    parts = [[(int(k), name) for k, _, name in (step.partition(".") for step
                                                in match["path"].split("-"))] for match, _ in files]
    passes = sorted({steps[0][0] for steps in parts})
    layers = {number: sorted({k for steps in parts if steps[0][0] == number
                              for k, name in steps[1:] if name.endswith("DecoderLayer")})
              for number in passes}
    dump = Dump()
    for steps, (match, file) in sorted(zip(parts, files), key=lambda item: item[0]):
        number = steps[0][0]
        names = [f"layers.{layers[number].index(k)}" if name.endswith("DecoderLayer")
                 else f"{k}.{name}" for k, name in steps[1:]]
        side = "in" if match["side"] == "input" else "out"
        dump.add(passes.index(number), f"{'.'.join(names)}:{side}.{match['name']}",
                 functools.partial(one_tensor, file))
    return dump
