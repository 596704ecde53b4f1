"""What the tests of the package share: where it is, the checkpoints, and the command."""
from __future__ import annotations

import functools
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "traces/python"
DATA = ROOT / "tests/data"
QWEN3, QWEN25 = str(DATA / "bard-qwen3"), str(DATA / "bard-qwen2.5")
TINY = str(DATA / "tiny/qwen3-default")
EXPERTS, SLIDING = str(DATA / "tiny/qwen3-moe"), str(DATA / "tiny/qwen2-sliding")
sys.path.insert(0, str(PACKAGE))


class InFolder(unittest.TestCase):
    """Each test has a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, part, function, *args, **kwargs):
        """The call raises LockstepError, in one sentence that has that part in it."""
        import lockstep
        with self.assertRaises(lockstep.LockstepError) as caught:
            function(*args, **kwargs)
        sentence = str(caught.exception)
        self.assertIn(part, sentence)
        self.assertNotIn("\n", sentence)


def main():
    """Runs the tests of the calling file; its only argument is the lockstep command."""
    os.environ["LOCKSTEP"] = str(pathlib.Path(sys.argv.pop()).resolve())
    unittest.main("__main__")


@functools.cache
def load(folder, dtype="bfloat16", attention="sdpa", **options):
    """A model of transformers, ready to compute; one of each kind is kept."""
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation=attention, **options).eval()


def tokens(count, seed, vocabulary):
    """Ids that look random, [1, count]."""
    import torch
    made = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary - 10, (1, count), generator=made)


def padded(lengths, vocabulary):
    """Prompts of these lengths, padded on the left: ids and attention mask."""
    import torch
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for b, length in enumerate(lengths):
        ids[b, longest - length:] = tokens(length, b, vocabulary)[0]
        mask[b, longest - length:] = 1
    return ids, mask
