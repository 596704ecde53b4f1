"""SGLang: its dumper's folders, old and new, and PassNNNNN.pt, which vLLM's copies write too."""
from __future__ import annotations

import pathlib
import re
from typing import Any

from lockstep.dumps.dump import Dump, load_pickle, of_ranks, one_tensor, tensors_in
from lockstep.dumps.loads import Load
from lockstep.errors import check

# The file of a pass is written by the hook of the module `model`, before that hook adds what the
# module returned: these keys stand in the file of the next pass.
ONE_PASS_LATE = ("model", "logits_processor", "lm_head")
PREFIX = "non_intrusive__"


def is_dumper(path: pathlib.Path) -> bool:
    return path.is_dir() and any(True for _ in _dumper_files(path))


def _dumper_files(path: pathlib.Path) -> list[pathlib.Path]:
    return [file for file in path.rglob("*.pt")
            if re.match(r"(step|forward_pass_id)=\d+___", file.name)]


def read_dumper(path: pathlib.Path) -> Dump:
    """One file a tensor, whose name has its facts: step=0___rank=0___dump_index=37___name=X.pt."""
    found = []
    for file in _dumper_files(path):
        facts = dict(part.split("=", 1) for part in file.name[:-3].split("___") if "=" in part)
        step = int(facts.get("step", facts.get("forward_pass_id", "0")))
        found.append((int(facts.get("rank", "0")), step, int(facts["dump_index"]),
                      _key_of(facts["name"]), file))
    steps = sorted({step for _, step, *_ in found})
    dumps: dict[int, Dump] = {}
    for rank, step, _, key, file in sorted(found, key=lambda item: item[:3]):
        dumps.setdefault(rank, Dump()).add(steps.index(step), key, _loader(file))
    return of_ranks(path, dumps)


def _loader(file: pathlib.Path) -> Load:
    return lambda: one_tensor(file)


def _given(tensor: Any) -> Load:
    return lambda: tensor


def _key_of(name: str) -> str:
    """non_intrusive__M.output.1 is M:out.1, non_intrusive__M.inputs.0 is M:in.0."""
    plain = name.removeprefix(PREFIX)
    match = re.fullmatch(r"(?P<module>.+?)\.(?P<side>inputs|output)(?P<rest>(\.\w+)*)", plain)
    if not match:
        return plain
    if match["rest"] == ".next_token_logits":
        return f"{match['module']}:out"
    return f"{match['module']}:{'in' if match['side'] == 'inputs' else 'out'}{match['rest']}"


def is_pass_files(path: pathlib.Path) -> bool:
    return path.is_dir() and any(re.fullmatch(r"Pass\d+\.pt", file.name)
                                 for file in path.rglob("*.pt"))


def read_pass_files(path: pathlib.Path) -> Dump:
    """One file a pass: a dict of leaf modules' outputs, a list where there were several."""
    files = sorted(file for file in path.rglob("Pass*.pt")
                   if re.fullmatch(r"Pass\d+\.pt", file.name))
    return of_ranks(path, {rank: _passes_of([file for file in files if file.parent == folder])
                           for rank, folder in _folders_of(path, files).items()})


def _folders_of(path: pathlib.Path, files: list[pathlib.Path]) -> dict[int, pathlib.Path]:
    """By rank, the folders TP0_PP0_Rank0_pid1, TP1_PP0_Rank1_pid2; one alone may have any name."""
    folders = sorted({file.parent for file in files})
    if len(folders) == 1:
        return {0: folders[0]}
    named = [re.match(r"TP(\d+)_PP0_Rank\d+", folder.name) for folder in folders]
    found = {int(match[1]): folder for match, folder in zip(named, folders) if match}
    check(len(found) == len(folders), f"{path} has the folders of several runs, or of ranks that "
          f"share layers: name one of them, as {folders[0]}")
    return found


def _passes_of(files: list[pathlib.Path]) -> Dump:
    dump = Dump()
    for i, file in enumerate(files):
        content: Any = load_pickle(file)
        check(isinstance(content, dict), f"{file} holds no dict of tensors: a PassNNNNN.pt was "
              "wanted")
        dump.begin(i)
        for name, value in content.items():
            late = name in ONE_PASS_LATE
            if late and i == 0:
                continue  # of a pass before the first file
            key = name.rpartition(".")[2] if ".forward_batch_info." in name else f"{name}:out"
            tensors = list(tensors_in(value, key))
            if not tensors:
                dump.skip(f"{file.name}: {name}")
            for part, tensor in tensors:
                part = key if len(tensors) == 1 else part
                dump.add(i - 1 if late else i, part, _given(tensor))
    return dump
