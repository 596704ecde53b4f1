"""python -m lockstep import SRC OUT.h5 --map MAP --model DIR, and python -m lockstep stats A B"""
from __future__ import annotations

import sys

from lockstep import command, statistics

COMMANDS = {"import": command.main, "stats": statistics.main}

if sys.argv[1:2] == [] or sys.argv[1] not in COMMANDS:
    print("error: python -m lockstep knows import and stats; other commands are of the lockstep "
          "binary", file=sys.stderr)
    sys.exit(2)
sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
