"""Ascend msprobe: step0/rank0/dump.json and the tensors that it names."""
from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from lockstep.dumps.dump import Dump, of_ranks, one_tensor
from lockstep.errors import LockstepError

MODULE = re.compile(r"Module\.(?P<module>.+)\.\w+\.forward\.\d+")


def is_msprobe(path: pathlib.Path) -> bool:
    return path.is_dir() and any(path.rglob("dump.json"))


def read_msprobe(path: pathlib.Path) -> Dump:
    """Modules (level L0 or mix) of each step; what is of the API level alone has no name here."""
    files = sorted(path.rglob("dump.json"), key=_step_of)
    ranks: dict[int, list[pathlib.Path]] = {}
    for file in files:
        match = re.fullmatch(r"rank(\d+)", file.parent.name)
        ranks.setdefault(int(match[1]) if match else 0, []).append(file)
    if len(ranks) == 1:
        return _steps_of(files)
    return of_ranks(path, {rank: _steps_of(own) for rank, own in ranks.items()})


def _steps_of(files: list[pathlib.Path]) -> Dump:
    dump = Dump()
    for number, file in enumerate(files):
        try:
            data = json.loads(file.read_text())["data"]
        except (ValueError, KeyError) as error:
            raise LockstepError(f"{file} is no whole dump.json ({error}): call stop() of the "
                                "debugger before it is read") from error
        for name, entry in data.items():
            match = MODULE.fullmatch(name)
            for key, tensor in _tensors_of(entry):
                data_name = tensor.get("data_name")
                if match is None or not data_name:
                    dump.skip(f"{name} {key}")
                    continue
                found = file.parent / "dump_tensor_data" / pathlib.PurePath(data_name).name
                dump.add(number, f"{match['module']}:{key}", functools.partial(one_tensor, found))
    return dump


def _step_of(file: pathlib.Path) -> int:
    match = re.search(r"step(\d+)", str(file))
    return int(match[1]) if match else 0


def _tensors_of(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    outputs = [t for t in entry.get("output") or [] if isinstance(t, dict)]
    for i, tensor in enumerate(outputs):
        yield "out" if len(outputs) == 1 else f"out.{i}", tensor
    for i, tensor in enumerate(entry.get("input_args") or []):
        if isinstance(tensor, dict):
            yield f"in.{i}", tensor
    for name, tensor in (entry.get("input_kwargs") or {}).items():
        if isinstance(tensor, dict):
            yield f"in.{name}", tensor
