"""Files by hand: npz, npy and safetensors, one a pass or one a tensor, names as their keys."""
from __future__ import annotations

import pathlib
import re
import zipfile

import numpy as np

from lockstep.dumps.dump import Dump, load_array
from lockstep.dumps.loads import Load
from lockstep.dumps.safetensors_file import read_safetensors
from lockstep.errors import LockstepError, check, one_line

SUFFIXES = (".npz", ".npy", ".safetensors")
PASS = re.compile(r"(?:^|[/_.-])(?:step|pass|iteration|iter)[_=-]?(\d+)", re.I)


def is_plain(path: pathlib.Path) -> bool:
    return bool(_files(path))


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in found if file.suffix in SUFFIXES and file.is_file()]


def read_plain(path: pathlib.Path) -> Dump:
    """The pass is the number after step, pass or iteration in the path or name; 0 without one."""
    files = _files(path)
    check(files, f"{path} has no .npz, .npy or .safetensors: a dump was wanted")
    found: list[tuple[int, str, Load]] = []
    for file in files:
        where = "" if path.is_file() else str(file.relative_to(path).with_suffix(""))
        for key, load in _tensors_of(file).items():
            name = "/".join(filter(None, (where, key))) if key else where
            match = PASS.search(name)
            # The name of a tensor is what is left when the pass is cut off.
            rest = (name[:match.start()] + name[match.end():]) if match else name
            own = key if file.suffix != ".npy" and key and not PASS.search(key) else \
                rest.strip("/_.-").replace("/", ".")
            found.append((int(match[1]) if match else 0, own, load))
    dump, numbers = Dump(), sorted({number for number, *_ in found})
    for number, key, load in found:
        dump.add(numbers.index(number), key, load)
    return dump


def _tensors_of(file: pathlib.Path) -> dict[str, Load]:
    if file.suffix == ".safetensors":
        return read_safetensors(file)
    if file.suffix == ".npy":
        return {"": lambda: load_array(file)}
    # numpy takes whatever is no archive for a pickle, and proposes to load that.
    check(zipfile.is_zipfile(file), f"{file} is no npz that can be read: it is not a whole zip "
          "archive, so that it was cut or is of another kind; save it anew")
    try:
        with np.load(file, allow_pickle=False) as archive:
            names = list(archive.files)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise LockstepError(f"{file} is no npz that can be read ({one_line(error)})") from error

    def load(name: str) -> Load:
        def get() -> np.ndarray:
            try:
                with np.load(file, allow_pickle=False) as archive:
                    return archive[name]
            except ValueError as error:
                raise LockstepError(f"{file}: {name} holds objects that are no numbers, or is "
                                    "damaged") from error
        return get

    return {name: load(name) for name in names}
