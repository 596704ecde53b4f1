"""A synthetic checkpoint is one that `lockstep run` takes and judges clean: lockstep script."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, SCRIPT = sys.argv[1], sys.argv[2]


def write(folder, *options):
    return subprocess.run([sys.executable, "-B", SCRIPT, *options[:1], folder, *options[1:]],
                          capture_output=True, text=True, check=False)


class Synthetic(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_it_is_judged_clean(self):
        for shape in ("qwen3-0.6b", "qwen2.5-0.5b"):
            folder = f"{self.folder.name}/{shape}"
            self.assertEqual(write(folder, shape, "--layers", "2", "--vocab", "512").returncode, 0)
            done = subprocess.run(
                [LOCKSTEP, "run", "--model", folder, "--max-new", "2", "--format", "json",
                 "--tokens", ",".join(str(7 * i % 512) for i in range(20))],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(json.loads(done.stdout)["verdict"], "clean")

    def test_a_seed_gives_the_same_weights_and_another_one_others(self):
        bytes_of = {}
        for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
            folder = f"{self.folder.name}/{name}"
            write(folder, "qwen2.5-0.5b", "--layers", "1", "--vocab", "64", "--seed", seed)
            bytes_of[name] = pathlib.Path(folder, "model.safetensors").read_bytes()
        self.assertEqual(bytes_of["a"], bytes_of["b"])
        self.assertNotEqual(bytes_of["a"], bytes_of["c"])

    def test_bad_options_are_refused(self):
        for options in (("qwen9",), ("qwen3-8b", "--layers", "0"), ("qwen3-8b", "--vocab", "x")):
            self.assertNotEqual(write(self.folder.name + "/bad", *options).returncode, 0, options)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
