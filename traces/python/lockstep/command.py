"""The console script lockstep-import, which is `python -m lockstep import` too."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from lockstep import mapping
from lockstep.dumps import FORMATS
from lockstep.errors import LockstepError, Parser, check, one_line, tell
from lockstep.importing import import_dump


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one sentence on stderr."""
    parser = Parser(
        prog="lockstep-import", description="Writes another tool's dump as a trace that lockstep "
        "judges. What it does not know is listed, and left out.")
    parser.add_argument("source", metavar="SRC", help="the dump: a folder or a file")
    parser.add_argument("out", metavar="OUT.h5", help="the trace")
    parser.add_argument("--map", required=True, help="names -> points: "
                        f"{', '.join(mapping.names())}, or the path of a JSON file")
    parser.add_argument("--model", required=True, metavar="DIR", help="the checkpoint's folder")
    parser.add_argument("--format", default="", choices=["", *FORMATS],
                        help="of the dump; else what it looks like")
    parser.add_argument("--dtype", default="", choices=["", "bf16", "fp16", "fp32"],
                        help="of the run; else what config.json says")
    parser.add_argument("--tokens", default="", metavar="1,2,3",
                        help="what the first pass was fed, where the dump does not say")
    parser.add_argument("--schema", default="", metavar="ENGINE",
                        help="where it rounds, as lockstep judge --schema has it; else what the "
                        "map says")
    options = parser.parse_args(arguments)
    try:
        tokens = _ids(options.tokens)
        print(import_dump(options.source, options.out, names=options.map, model=options.model,
                          kind=options.format, dtype=options.dtype, tokens=tokens,
                          schema=options.schema))
    except (LockstepError, ValueError) as error:
        return tell(str(error))
    except (OSError, MemoryError) as error:
        return tell(f"{options.out} cannot be written: {one_line(error)}; make room, or name "
                    "another file")
    return 0


def _ids(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    for part in parts:
        check(part.strip().isdecimal(), f"--tokens: ids such as 1,2,3 were wanted, found '{part}'")
    return [int(part) for part in parts]


def end(status: int) -> NoReturn:
    """Ends the process. After trouble at once: libhdf5, which closes at exit what could not be
    written, would crash.
    """
    if status == 0:
        sys.exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def script() -> NoReturn:
    """The console script."""
    end(main())


if __name__ == "__main__":
    script()
