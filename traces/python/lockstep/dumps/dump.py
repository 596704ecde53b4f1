"""What a dump holds: by pass, tensors by key, read when they are wanted."""
from __future__ import annotations

import dataclasses
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep.dumps.loads import Load
from lockstep.dumps.safetensors_file import read_safetensors
from lockstep.elements import Elements
from lockstep.errors import LockstepError, check, one_line

MAGIC = b"\x93NUMPY"  # the first bytes of a .npy file


@dataclasses.dataclass
class Dump:
    """Passes in the order in which they were computed."""

    passes: list[dict[str, Load]] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)  # what is no tensor
    # Those of ranks 1, 2, ... that shared the model, each with as many passes.
    others: list[Dump] = dataclasses.field(default_factory=list)

    def begin(self, number: int) -> None:
        """There is such a pass, whatever is found of it."""
        while len(self.passes) <= number:
            self.passes.append({})

    def add(self, number: int, key: str, load: Load) -> None:
        """A tensor of a pass; what has the same key again is another call of the same module."""
        self.begin(number)
        kept = self.passes[number]
        name, call = key, 1
        while name in kept:
            name, call = f"{key}#{call}", call + 1
        kept[name] = load

    def skip(self, name: str) -> None:
        self.skipped.append(name)


def of_ranks(path: pathlib.Path, ranks: dict[int, Dump]) -> Dump:
    """The dump of rank 0, with the others' beside it."""
    check(sorted(ranks) == list(range(len(ranks))), f"{path} has ranks "
          f"{', '.join(map(str, sorted(ranks)))}: all from 0 on were wanted, or the folder of one "
          "that holds whole tensors")
    first = ranks[0]
    first.others = [ranks[rank] for rank in range(1, len(ranks))]
    for rank, dump in enumerate(first.others, 1):
        check(len(dump.passes) == len(first.passes), f"{path} has {len(dump.passes)} passes of "
              f"rank {rank} and {len(first.passes)} of rank 0: the ranks of one run were wanted")
        first.skipped += [f"rank {rank}: {name}" for name in dump.skipped]
    return first


def load_pickle(path: pathlib.Path) -> Any:
    """What torch.save wrote, if it is tensors and plain values. Nothing in it is ever run."""
    import torch
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError,
            AttributeError, IndexError) as error:
        raise LockstepError(f"{path} is not read: it holds an object that is no tensor, which "
                            "would have to be run to be known, or is damaged (tensors alone are "
                            "read: torch.load with weights_only=True)") from error


def load_array(path: pathlib.Path) -> Any:
    """What numpy.save wrote, if it is numbers."""
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    # numpy takes whatever begins otherwise for a pickle, and proposes to load that.
    check(begin == MAGIC, f"{path} is not read: it is no .npy file, which begins with {MAGIC!r}, "
          f"and it begins with {begin!r}")
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        why = "" if "pickle" in str(error) else f" ({one_line(error)})"
        raise LockstepError(f"{path} is not read: it holds objects that are no numbers, or is "
                            f"damaged{why}") from error


def is_tensor(value: Any) -> bool:
    of_torch = type(value).__module__.partition(".")[0] == "torch"
    return isinstance(value, (np.ndarray, Elements)) or of_torch and hasattr(value, "detach")


def tensors_in(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a value that may be one, a list of them or a dict."""
    if is_tensor(value):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{key}.{i}")
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from tensors_in(part, f"{key}.{name}")


def one_tensor(path: pathlib.Path) -> Any:
    """The tensor of a file of one: .npy, .pt or .safetensors; None where it holds none."""
    value: Any
    if path.suffix == ".npy":
        value = load_array(path)
    elif path.suffix == ".safetensors":
        value = next(iter(read_safetensors(path).values()))()
    else:
        value = load_pickle(path)
    if isinstance(value, dict) and "value" in value:  # SGLang's dumper
        value = value["value"]
    found = list(tensors_in(value, ""))
    return found[0][1] if len(found) == 1 else None
