"""Two engines side by side: lockstep diff A B --model M of Hugging Face's trace and ours.

python two_engines_test.py LOCKSTEP. Each is judged under its own contract: which of them introduces
an error is said, or that both are right and where their contracts part.
"""
import json
import os
import subprocess
import unittest

import support
from support import QWEN3, InFolder, load, tokens

import lockstep

STEPS = 4


class TwoEngines(InFolder):
    def ours(self, name, *options):
        """The engine's run of the prompt that Hugging Face had."""
        path = self.folder / name
        made = subprocess.run(
            [os.environ["LOCKSTEP"], "run", "--model", QWEN3, "--tokens", self.prompt, "--max-new",
             str(STEPS), "--keep", "full", "--trace", path, "-q", *options], capture_output=True,
            text=True, check=False)
        self.assertTrue(path.exists(), made.stderr)
        return path

    def diff(self, a, b):
        made = subprocess.run([os.environ["LOCKSTEP"], "diff", a, b, "--model", QWEN3, "--format",
                               "json"], capture_output=True, text=True, check=False)
        self.assertTrue(made.stdout, made.stderr)
        return made.returncode, json.loads(made.stdout)

    def test_both_are_right_or_one_introduces_an_error(self):
        ids = tokens(24, 5, 4096)
        self.prompt = ",".join(str(int(i)) for i in ids[0])
        theirs = self.folder / "hf.h5"
        with lockstep.capture(load(QWEN3), theirs):
            load(QWEN3).generate(ids, do_sample=False, max_new_tokens=STEPS)
        status, result = self.diff(theirs, self.ours("ours.h5"))
        story = result["story"]
        self.assertEqual((status, result["verdict"]), (0, "noise"), story)
        for part in ("both are right, each under its own contract",
                     "their contracts part at attn.norm (hf / fused)",
                     "bits differ first at layer 0 attn.norm, request 0, position 0",
                     "that costs a mean KL of "):
            self.assertIn(part, story)
        wrong = self.ours("wrong.h5", "--fault", "rope-interleaved@layer=2")
        status, result = self.diff(theirs, wrong)
        self.assertEqual((status, result["verdict"]), (1, "different"), result["story"])
        self.assertIn(f"{wrong} introduces an error, and {theirs} does not: layer 2 attn.q_rope",
                      result["story"])


if __name__ == "__main__":
    support.main()
