"""python -m lockstep import SRC OUT.h5 --map MAP --model DIR"""
from __future__ import annotations

import sys

from lockstep import command

if sys.argv[1:2] != ["import"]:
    print("error: python -m lockstep knows import alone; other commands are of the lockstep binary",
          file=sys.stderr)
    sys.exit(2)
sys.exit(command.main(sys.argv[2:]))
