"""python -m lockstep import SRC OUT.h5 --map MAP --model DIR, stats A B, and bundle CALL.pt OUT"""
from __future__ import annotations

import sys

from lockstep import bundle, command, statistics

COMMANDS = {"import": command.main, "stats": statistics.main, "bundle": bundle.main}

if sys.argv[1:2] in (["--help"], ["-h"]):
    print(f"usage: {__doc__}\n\n`python -m lockstep import --help` says what import takes, and so "
          "of the others; other commands are of the lockstep binary")
    sys.exit(0)
if sys.argv[1:2] == [] or sys.argv[1] not in COMMANDS:
    print("error: python -m lockstep knows import, stats and bundle; other commands are of the "
          "lockstep binary", file=sys.stderr)
    sys.exit(2)
command.end(COMMANDS[sys.argv[1]](sys.argv[2:]))
