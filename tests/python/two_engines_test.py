"""Two engines side by side: lockstep diff A B --model M of Hugging Face's trace and ours.

python two_engines_test.py LOCKSTEP. Each is judged under its own contract: which of them introduces
an error is said, or that both are right and where their contracts part.
"""
import json
import os
import subprocess
import unittest

import support
from support import TINY, InFolder, load, padded, tokens

import lockstep

STEPS = 4


def text_of(ids):
    return ",".join(str(int(i)) for i in ids)


class TwoEngines(InFolder):
    def ours(self, name, *options):
        """The engine's run of the prompts that Hugging Face had."""
        path = self.folder / name
        prompts = [word for prompt in self.prompts for word in ("--tokens", prompt)]
        made = subprocess.run(
            [os.environ["LOCKSTEP"], "run", "--model", TINY, *prompts, "--max-new", str(STEPS),
             "--keep", "full", "--trace", path, "-q", *options], capture_output=True, text=True,
            check=False)
        self.assertTrue(path.exists(), made.stderr)
        return path

    def diff(self, a, b):
        made = subprocess.run([os.environ["LOCKSTEP"], "diff", a, b, "--model", TINY, "--format",
                               "json"], capture_output=True, text=True, check=False)
        self.assertTrue(made.stdout, made.stderr)
        return made.returncode, json.loads(made.stdout)

    def test_both_are_right_or_one_introduces_an_error(self):
        ids = tokens(24, 5, 320)
        self.prompts = [text_of(ids[0])]
        theirs = self.folder / "hf.h5"
        with lockstep.capture(load(TINY), theirs):
            load(TINY).generate(ids, do_sample=False, max_new_tokens=STEPS)
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

    def test_requests_are_known_by_their_tokens(self):
        """Theirs are 0: p, 1: q, 2: p again, 3: r; ours 0: q, 1: s, 2: p, 3: p again."""
        ids, mask = padded([7, 5, 7, 6], 320)
        ids[2] = ids[0]
        theirs = self.folder / "hf.h5"
        with lockstep.capture(load(TINY), theirs):
            load(TINY).generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=STEPS)
        p, q = text_of(ids[0]), text_of(ids[1][2:])
        self.prompts = [q, text_of(tokens(9, 77, 320)[0]), p, p]
        status, result = self.diff(theirs, self.ours("ours.h5"))
        self.assertEqual((status, result["verdict"]), (0, "noise"), result["story"])
        said = [f"request {b} of the second trace has the tokens of request {a} of the first, and "
                "is compared with it" for b, a in ((0, 1), (2, 0), (3, 2))]
        self.assertEqual([line for line in result["renamed"] if "has the tokens" in line], said)
        for part in ("request 3 of 9 tokens is in the first trace only, and is not compared",
                     "request 1 of 12 tokens is in the second trace only, and is not compared"):
            self.assertIn(part, result["remarks"])
        self.assertIn("21 tokens were fed in one trace only", result["story"])
        self.assertEqual([judged["verdict"] for judged in result["judged"]], ["clean"] * 2)
        wrong = self.ours("wrong.h5", "--fault", "rope-interleaved@layer=2")
        status, result = self.diff(wrong, theirs)
        self.assertEqual((status, result["verdict"]), (1, "different"), result["story"])
        self.assertIn(f"{wrong} introduces an error, and {theirs} does not: layer 2 attn.q_rope",
                      result["story"])


if __name__ == "__main__":
    support.main()
