"""What was tried by hand and did not end well once: by_hand_test.py LOCKSTEP DATA."""
from __future__ import annotations

import json
import os
import pty
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import work

LOCKSTEP, DATA = (str(Path(argument).resolve()) for argument in sys.argv[1:3])
TINY, BARD = DATA + "/tiny/qwen3-default", DATA + "/bard-qwen3"
PACKAGE = str(Path(DATA).parents[1] / "traces/python")
GENERATE = [LOCKSTEP, "generate", "-m", TINY, "--format", "json", "--tokens", "1", "-n", "1"]


class ByHand(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refused(self, arguments: list[str], part: str, **options) -> None:
        ended = work.call(arguments, **options)
        self.assertEqual(work.trouble_of_ended(ended, ()), "", arguments)
        self.assertIn(part, ended.err)

    def model(self, of: str = TINY) -> Path:
        return Path(shutil.copytree(of, self.folder / "model"))

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def test_a_pipe_is_refused_wherever_a_file_is_wanted(self) -> None:
        pipe = str(self.folder / "pipe.jsonl")
        os.mkfifo(pipe)
        for arguments in ([LOCKSTEP, "report", pipe, "--html", str(self.folder / "x.html")],
                          [*GENERATE, "--ops", pipe], [*GENERATE, "--requests", pipe],
                          [LOCKSTEP, "inspect", pipe]):
            self.refused(arguments, pipe)

    def test_a_value_is_shown_to_80_characters(self) -> None:
        for arguments in (["--points", "q" * 5000], ["--fault", "q" * 5000],
                          ["--ops", "q" * 5000]):
            ended = work.call([*GENERATE, *arguments])
            self.assertEqual(work.trouble_of_ended(ended, ()), "", arguments[0])
            self.assertNotIn("q" * 81, ended.err, arguments[0])

    def test_a_long_path_keeps_its_begin_and_its_end(self) -> None:
        long = "first" + "q" * 5000 + "last"
        ended = work.call([LOCKSTEP, "inspect", long])
        self.assertEqual(work.trouble_of_ended(ended, ()), "")
        self.assertIn("first", ended.err)
        self.assertIn("qqqlast: a trace was wanted", ended.err)
        self.assertLess(len(ended.err), 400)

    def test_a_tensor_is_named_with_its_file(self) -> None:
        model = self.model(DATA + "/tiny/qwen3-untied-sharded")
        index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
        config = json.loads((model / "config.json").read_text())
        for changed, tensor in (({"vocab_size": config["vocab_size"] + 1}, "lm_head.weight"),
                                ({"num_hidden_layers": 1, "layer_types": None},
                                 "model.layers.1.")):
            (model / "config.json").write_text(json.dumps({**config, **changed}))
            ended = work.call([LOCKSTEP, "model", str(model)])
            self.assertEqual(work.trouble_of_ended(ended, ()), "")
            self.assertIn(tensor, ended.err)
            named = next(name for name in index if f'"{name}"' in ended.err)
            self.assertIn(str(model / index[named]), ended.err)

    def test_a_result_that_lost_its_end_is_refused(self) -> None:
        for name in ("x.h5", "x.journal", "x.trace"):
            trace = self.folder / name
            ran = work.call([LOCKSTEP, "run", "-m", TINY, "--tokens", "1,2", "-n", "2", "-q",
                             "--trace", str(trace), "--keep",
                             "digest" if name == "x.journal" else "full"])
            self.assertEqual(ran.status, 0, ran.err)
            kept = trace / "result.json" if trace.is_dir() else trace
            whole = kept.read_bytes()
            for cut in (1, 1000):
                text = whole.rstrip(b"\n") if trace.is_dir() else whole
                kept.write_bytes(text[:-cut])
                self.refused([LOCKSTEP, "inspect", str(trace)], str(trace))
                self.refused([LOCKSTEP, "report", str(trace), "--html",
                              str(self.folder / "x.html")], str(trace))
            if name == "x.journal":
                continue  # without numbers nothing is judged
            judged = work.call([LOCKSTEP, "judge", str(trace), "--model", TINY, "-q"])
            self.assertEqual(judged.status, 0, judged.err)
            self.assertEqual(work.call([LOCKSTEP, "inspect", str(trace)]).status, 0)

    def test_a_token_of_a_long_name_takes_no_time(self) -> None:
        vocabulary = json.loads((Path(BARD) / "tokenizer.json").read_text())
        vocabulary["model"]["vocab"]["a" * 10_000_000] = 4999
        model = self.model(BARD)
        (model / "tokenizer.json").write_text(json.dumps(vocabulary))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.assertEqual(work.call([LOCKSTEP, "generate", "-m", str(model), "-p", "a", "-n",
                                    "1"]).status, 0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.assertLess(used, 5, "0.2 s; very many when each letter made a sentence")

    def test_nested_json_is_refused(self) -> None:
        deep = "[" * 100_000
        for name in ("config.json", "generation_config.json"):
            model = self.model()
            (model / name).write_text('{"a":' + deep)
            self.refused([LOCKSTEP, "generate", "-m", str(model), "--tokens", "1"], name)
            shutil.rmtree(model)
        model = self.model()
        header = b'{"t":{"dtype":"F32","shape":' + deep.encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        self.refused([LOCKSTEP, "model", str(model)], "model.safetensors")
        self.refused([*GENERATE, "--requests", self.file("x.jsonl", deep)], "x.jsonl")

    def test_a_file_is_named_by_the_sentence_about_it(self) -> None:
        vocabulary = json.loads((Path(BARD) / "tokenizer.json").read_text())
        del vocabulary["model"]["vocab"]["!"]
        model = self.model(BARD)
        (model / "tokenizer.json").write_text(json.dumps(vocabulary))
        self.refused([LOCKSTEP, "generate", "-m", str(model), "-p", "a"], "tokenizer.json: model.v")
        for text in ("", '{"tokens":[]}', '{"tokens":[-1]}', '{"tokens":[1]}\0'):
            self.refused([*GENERATE[:6], "--requests", self.file("r.jsonl", text)], "r.jsonl")
        result = '{"format":"lockstep-result","format_version":"1.1","nodes":{},"verdict":"x"}'
        self.refused([LOCKSTEP, "report", self.file("r.json", result), "--html",
                      str(self.folder / "x.html")], "r.json: verdict")

    def test_a_cache_beyond_the_memory_is_refused_before_it_is_made(self) -> None:
        wanted = '{"tokens":[1],"max_new":1000000000}'
        self.refused([*GENERATE[:6], "--requests", self.file("r.jsonl", wanted)], "lower --max-new")

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "AddressSanitizer takes all addresses")
    def test_queues_for_which_there_are_no_threads_are_a_sentence(self) -> None:
        room = 12 << 30
        self.refused([LOCKSTEP, "run", "-m", TINY, "--tokens", "1,2", "-n", "1", "--executor",
                      "instructions", "--queues", "4000"], "make a schedule of fewer queues",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (room, room)))

    def test_a_page_of_what_is_no_result_is_refused(self) -> None:
        for name in ("check", "replay", "ops"):
            self.refused([LOCKSTEP, "report", self.file(name, f'{{"format": "lockstep-{name}"}}'),
                          "--html", str(self.folder / "page.html")],
                         "is neither a result nor a trace")

    def test_a_library_that_was_cut_is_a_sentence(self) -> None:
        whole = Path(LOCKSTEP).with_name("trouble.so").read_bytes()
        library = self.folder / "cut.so"
        for size in (100, 3000, len(whole) // 2):
            library.write_bytes(whole[:size])
            self.refused([*GENERATE, "--ops", str(library)], "cut.so")

    def test_an_import_says_its_trouble_in_one_line(self) -> None:
        (self.folder / "dump").mkdir()
        (self.folder / "dump/a\x1b[31m\n.npy").write_bytes(b"")
        deep = self.file("deep.json", "[" * 100_000)
        for arguments in (["--map", deep], ["--map", "/no\x1b[31m/map.json"],
                          ["--map", "huggingface"], ["--map", "huggingface", "--tokens", "-1,2"]):
            self.refused([sys.executable, "-B", "-m", "lockstep", "import",
                          str(self.folder / "dump"), str(self.folder / "x.h5"), "--model", TINY,
                          *arguments], "", env={"PYTHONPATH": PACKAGE})

    def test_what_has_no_end_is_refused(self) -> None:
        for name in ("/dev/full", "/dev/zero", "/proc/self/mem"):
            self.refused([*GENERATE, "--requests", name], name)

    def test_a_checkpoint_that_is_cut_while_it_is_read_is_a_sentence(self) -> None:
        model = self.model(BARD)

        def cut(running: subprocess.Popen) -> None:
            running.stdout.readline()  # it generates, so that all is open
            os.truncate(model / "model.safetensors", 4096)
        requests = self.file("x.jsonl", "".join(
            json.dumps({"tokens": [1, 2, 3 + i], "max_new": 200}) + "\n" for i in range(3)))
        running = subprocess.Popen(
            [LOCKSTEP, "generate", "-m", str(model), "--requests", requests, "--format", "json",
             "--ignore-eos", "--max-batch", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **work.PREPARED})
        cut(running)
        _, err = running.communicate(timeout=work.SECONDS)
        self.assertEqual(running.returncode, 2, err)
        self.assertEqual(work.not_a_sentence(err), "")
        self.assertIn("was cut by another process while it was read", err)

    def test_a_dumb_terminal_gets_no_escape(self) -> None:
        for term, has in (("dumb", False), ("xterm", True)):
            ours, theirs = pty.openpty()
            seen = bytearray()

            def read(descriptor: int = ours, into: bytearray = seen) -> None:
                try:
                    while part := os.read(descriptor, 4096):
                        into += part
                except OSError:
                    pass  # the other end is closed
            reader = threading.Thread(target=read)
            reader.start()
            subprocess.run([LOCKSTEP, "run", "-m", TINY, "--tokens", "1,2", "-n", "1"],
                           stdout=theirs, stderr=theirs, check=True,
                           env={**os.environ, **work.PREPARED, "TERM": term})
            os.close(theirs)
            reader.join()
            os.close(ours)
            self.assertIn(b"clean", bytes(seen))
            self.assertEqual(b"\x1b" in seen, has, term)

    def test_a_long_generation_says_how_far_it_is(self) -> None:
        ours, theirs = pty.openpty()
        running = subprocess.Popen([*GENERATE[:-1], "60000", "--ignore-eos"], stderr=theirs,
                                   stdout=subprocess.DEVNULL,
                                   env={**os.environ, **work.PREPARED, "TERM": "xterm"})
        os.close(theirs)
        seen = b""
        while b" of 60000 tokens chosen" not in seen:
            seen += os.read(ours, 4096)  # which throws where the command ended
        running.kill()
        running.wait()
        os.close(ours)
        self.assertIn(b"reading 1 tokens of prompts", seen)

    def test_nobody_else_s_file_is_lost(self) -> None:
        (self.folder / "r.json.part").write_text("precious")
        (self.folder / "target").write_text("precious")
        (self.folder / "link.json").symlink_to(self.folder / "target")
        wrong = [LOCKSTEP, "run", "-m", TINY, "--tokens", "999999999"]
        for name in ("r.json", "link.json"):
            self.refused([*wrong, "--json", str(self.folder / name)], "999999999")
        self.assertEqual((self.folder / "r.json.part").read_text(), "precious")
        self.assertEqual((self.folder / "target").read_text(), "precious")
        model = self.model()
        before = (model / "config.json").read_bytes()
        for option in ("--json", "--markdown", "--html", "--junit"):
            self.refused([LOCKSTEP, "run", "-m", str(model), "--tokens", "1", option,
                          str(model / "config.json")], "config.json")
        self.assertEqual((model / "config.json").read_bytes(), before)

    def test_files_that_are_written_are_nobody_else_s_until_they_are_whole(self) -> None:
        trace = self.folder / "x.trace"
        running = subprocess.Popen(
            [LOCKSTEP, "generate", "-m", TINY, "--format", "json", "--tokens", "1,2,3", "-n",
             "60", "--ignore-eos", "--keep", "full", "--trace", str(trace)],
            stdout=subprocess.DEVNULL, env={**os.environ, **work.PREPARED})
        modes = set()
        while running.poll() is None:
            for part in trace.glob("*.part"):
                try:
                    modes.add(part.stat().st_mode & 0o777)
                except FileNotFoundError:
                    pass  # it got its name
            time.sleep(0.001)
        self.assertEqual(running.returncode, 0)
        usual = 0o666 & ~os.umask(0o022)
        os.umask(0o666 & ~usual)
        self.assertEqual(modes - {usual}, {0o600}, "whole, it gets what the umask leaves")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
