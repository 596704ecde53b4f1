"""What right kernels are off themselves, where a nudge of few units in the last place is missed.

python power.py MODEL ... [--dtype fp32]

Of each nudge (bugs_small.py): its size, and at its op what is between right kernels (variants.py)
and the exact result of the inputs that were recorded, in units in the last place: root of the mean
square, most, and mean over all elements and over one channel, with the sign of the result. A nudge
that is less than these cannot be told from rounding by who does not know the kernel.
"""
from __future__ import annotations

import argparse
import copy
import pathlib

import torch

import judging
from bugs_small import NUDGES
from judging import Setting
from right_ops import MANTISSA, RightOps, recorded
from trace_file import Pass, Place
from variants import VARIANTS

# Other right kernels of a point, by a part of its name; of the rest those of products.
KERNELS = {
    "norm": ("plain", "norm-fused", "norm-fp64", "norm-in-parts", "norm-of-torch"),
    "rope": ("plain", "rope-fp32-once", "rope-fp64-once", "rope-complex"),
    "attn.out": ("plain", "sdpa-math", "sdpa-flash", "attention-online", "attention-split-kv"),
    "": ("plain", "linear-fp64-once", "linear-split-k", "linear-backwards", "linear-in-order")}


def widened(passes: list[Pass]) -> list[Pass]:
    """The same numbers in fp64."""
    passes = [copy.copy(run) for run in passes]
    for run in passes:
        run.tensors = {place: t.double() if t.is_floating_point() else t
                       for place, t in run.tensors.items()}
        run.caches = {key: t.double() for key, t in run.caches.items()}
    return passes


def errors(exact: torch.nn.Module, passes: list[Pass], place: Place, dtype: torch.dtype,
           ) -> torch.Tensor:
    """[row, channel], in units in the last place; over 0: too large."""
    ops, found = RightOps(exact, widened(passes)), []
    for number, run in enumerate(passes):
        want, got = ops.right(number, place).double(), recorded(run, place).double()
        unit = torch.exp2((torch.frexp(want).exponent - 1 - MANTISSA[dtype]).double())
        found.append(((got - want) * want.sign() / unit).reshape(len(want), -1))
    return torch.cat(found)


def report(setting: Setting) -> None:
    model = setting.model()
    exact, runs = copy.deepcopy(model).double(), {}
    for nudge in NUDGES:
        if not nudge.possible(model, setting.dtype) or nudge.point == "mlp.residual":
            continue
        names = next(names for part, names in KERNELS.items() if part in nudge.point)
        sizes = []
        for name in names:
            if VARIANTS[name].possible(model, setting.dtype):
                if name not in runs:
                    runs[name] = judging.run_variant(setting, VARIANTS[name]).passes
                off = errors(exact, runs[name], nudge.place(model), model.dtype).nan_to_num(0)
                sizes.append((off.square().mean().sqrt(), off.abs().max(), off.mean().abs(),
                              off[:, min(9, off.shape[1] - 1)].mean().abs()))
        rms, most, mean, channel = (max(map(float, kind)) for kind in zip(*sizes))
        print(f"{pathlib.Path(setting.folder).name:13s} {nudge.name:26s} right kernels: rms "
              f"{rms:.3g}, most {most:.3g}, mean {mean:.2g}, of a channel {channel:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="+", help="checkpoint folders")
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.models:
        report(Setting(model, options.dtype, "sdpa"))


if __name__ == "__main__":
    main()
