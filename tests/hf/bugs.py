"""All bugs, by name."""
from __future__ import annotations

import bugs_attention
import bugs_linear
import bugs_norm
import bugs_small
from bug import Bug

BUGS: dict[str, Bug] = {bug.name: bug for bug in (
    bugs_norm.BUGS + bugs_attention.BUGS + bugs_linear.BUGS + bugs_small.BUGS)}
