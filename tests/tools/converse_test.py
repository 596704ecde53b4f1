"""A conversation with `lockstep generate` on a terminal: generate_binary checkpoint."""

import os
import pty
import select
import subprocess
import sys
import unittest

LOCKSTEP, MODEL = sys.argv[1], sys.argv[2]
END = b"\x04"  # Ctrl-D


class Terminal:
    """The command on a terminal of its own; stdout is a pipe, as what it says is a result."""

    def __init__(self, *options):
        self.keys, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [LOCKSTEP, "generate", "--model", MODEL, "--dtype", "fp32", *options],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(theirs)

    def read_until_prompt(self):
        """What stdout says up to the next prompt, which stderr shows."""
        said, shown = b"", b""
        streams = [self.process.stdout, self.process.stderr]
        while not shown.endswith(b"> "):
            ready, _, _ = select.select(streams, [], [], 60)
            if not ready:
                raise AssertionError(f"no prompt in a minute: {said} {shown}")
            for stream in ready:
                part = os.read(stream.fileno(), 4096)
                if not part:
                    raise AssertionError(f"it ended: {said} {shown}")
                if stream is self.process.stdout:
                    said += part
                else:
                    shown += part
        # The answer was written before the prompt was, and is in the pipe.
        while select.select([self.process.stdout], [], [], 0)[0]:
            said += os.read(self.process.stdout.fileno(), 4096)
        return said.decode()

    def say(self, line):
        os.write(self.keys, line.encode() + b"\n")
        return self.read_until_prompt()

    def end(self):
        os.write(self.keys, END)
        out, err = self.process.communicate(timeout=60)
        os.close(self.keys)
        return self.process.returncode, out, err


def answer_to(messages, *options):
    """What the command says to a whole conversation that is a request."""
    import json
    import tempfile
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        json.dump({"messages": messages}, file)
        file.flush()
        return subprocess.run(
            [LOCKSTEP, "generate", "--model", MODEL, "--dtype", "fp32", "--requests", file.name,
             *options], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout.decode()


class Conversation(unittest.TestCase):
    def test_every_turn_has_the_turns_before_it(self):
        terminal = Terminal("--max-new", "12")
        self.assertEqual(terminal.read_until_prompt(), "")
        messages = []
        for line in ["Who goes there?", "And why?"]:
            messages.append({"role": "user", "content": line})
            said = terminal.say(line)
            self.assertEqual(said, answer_to(messages, "--max-new", "12"))
            messages.append({"role": "assistant", "content": said[:-1]})
        self.assertEqual(terminal.end(), (0, b"", b"\n"))

    def test_an_empty_line_is_no_turn(self):
        terminal = Terminal("--max-new", "4")
        terminal.read_until_prompt()
        self.assertEqual(terminal.say(""), "")
        said = terminal.say("Ho")
        self.assertEqual(said, answer_to([{"role": "user", "content": "Ho"}], "--max-new", "4"))
        self.assertEqual(terminal.end()[0], 0)

    def test_a_question_asked_again_is_drawn_anew(self):
        terminal = Terminal("--max-new", "12", "--temperature", "1.5", "--seed", "3")
        terminal.read_until_prompt()
        first = terminal.say("Who?")
        self.assertEqual(first, answer_to([{"role": "user", "content": "Who?"}], "--max-new", "12",
                                          "--temperature", "1.5", "--seed", "3"))
        self.assertNotEqual(terminal.say("Who?"), first)
        self.assertEqual(terminal.end()[0], 0)

    def test_a_conversation_that_does_not_fit_says_so(self):
        terminal = Terminal("--max-new", "12", "--pages", "1")
        terminal.read_until_prompt()
        os.write(terminal.keys, b"Who goes there, and why so late at night?\n")
        out, err = terminal.process.communicate(timeout=60)
        self.assertEqual(terminal.process.returncode, 2)
        self.assertEqual(out, b"")
        self.assertIn(b"raise --pages", err)
        os.close(terminal.keys)

    def test_without_a_terminal_there_is_no_conversation(self):
        outcome = subprocess.run([LOCKSTEP, "generate", "--model", MODEL], input=b"Hi\n",
                                 capture_output=True, check=False)
        self.assertEqual(outcome.returncode, 2)
        self.assertIn(b"there is nothing to run", outcome.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
