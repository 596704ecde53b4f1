"""Where the points of a model round inside, as transformers' modules compute them."""
from __future__ import annotations

from lockstep.errors import LockstepError
from lockstep.points import AXES

# These round more than once; every other point once, when it is stored.
SEVERAL_ROUNDINGS = frozenset({
    "attn.norm", "attn.q_norm", "attn.k_norm", "attn.q_rope", "attn.k_rope", "attn.out",
    "mlp.norm", "mlp.act", "mlp.expert_act", "mlp.combine", "final.norm"})


def rounding(name: str) -> dict[str, str]:
    """The contract of each point: of `hf`, with attention by sdpa or flash, or of `eager`."""
    if name not in ("hf", "eager"):
        raise LockstepError(f"'{name}' is no set of rounding contracts: hf or eager was wanted, or "
                            "an object of contracts by point")
    contracts = {point: "hf" if point in SEVERAL_ROUNDINGS else "fused" for point in AXES}
    return contracts | {"attn.out": name}
