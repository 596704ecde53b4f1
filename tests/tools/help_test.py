"""Help, completions and the manual page as shells and terminals have them: lockstep_binary."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
COMMANDS = ("run judge ops check diff inspect replay repro report schedule generate selftest "
            "calibrate model points faults bench help completions man").split()


def said(*arguments):
    done = subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == "", done.stderr
    return done.stdout


class Terminal:
    """A program on a terminal of its own, which has that many columns."""

    def __init__(self, command, columns=80):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs,
                                        start_new_session=True)
        os.close(theirs)
        self.shown = ""

    def type(self, keys):
        os.write(self.ours, keys.encode())

    def read(self):
        """Whether there was more to read."""
        ready, _, _ = select.select([self.ours], [], [], 30)
        if not ready:
            raise AssertionError(f"nothing more came after {self.shown!r}")
        try:
            part = os.read(self.ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.shown += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)

    def wait_for(self, text):
        while text not in self.shown:
            if not self.read():
                raise AssertionError(f"it ended without {text!r}: {self.shown!r}")
        self.shown = self.shown[self.shown.index(text) + len(text):]

    def end(self):
        while self.read():
            pass
        os.close(self.ours)
        return self.process.wait()


def on_terminal(columns, *arguments):
    """stdout of the command on a terminal of that width."""
    terminal = Terminal([LOCKSTEP, *arguments], columns)
    assert terminal.end() == 0, terminal.shown
    return terminal.shown


def longest(text):
    return max(len(line) for line in text.splitlines())


class Help(unittest.TestCase):
    def test_fits_80_columns_where_there_is_no_terminal(self):
        for command in COMMANDS:
            text = said(command, "--help")
            self.assertLessEqual(longest(text), 80, command)
            self.assertEqual(said("help", command), text)
            self.assertEqual(said(command, "-h"), text)
        self.assertLessEqual(longest(said("--help")), 80)
        self.assertEqual(said("help"), said("--help"))

    def test_fits_the_terminal(self):
        for columns in (60, 100):
            for arguments in (("run", "--help"), ("help",), ("help", "budget")):
                self.assertLessEqual(longest(on_terminal(columns, *arguments)), columns, arguments)
        wide, narrow = on_terminal(100, "run", "-h"), on_terminal(60, "run", "-h")
        self.assertLess(wide.count("\n"), narrow.count("\n"))

    def test_groups_options_the_most_used_first(self):
        text = said("run", "--help")
        headings = re.findall(r"^(\w+):$", text, re.M)
        self.assertEqual(headings, ["Model", "Requests", "Sampling", "Serving", "Instructions",
                                    "Observe", "Judge", "Output", "Help", "Examples"])
        self.assertLess(text.index("--prompt"), text.index("--stop"))

    def test_explains_words_before_anything_is_opened(self):
        for command in ("run", "judge", "diff"):
            self.assertEqual(said(command, "--explain", "T1"), said("help", "max_error"))


def bash(lines, folder=None):
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False,
                          cwd=folder)
    assert done.returncode == 0 and done.stderr == "", (done.stderr, lines)
    return done.stdout


class Bash(unittest.TestCase):
    """Each case is one press of the tabulator, in a bash that has read the script."""

    def offered(self, *words, folder=None):
        quoted = " ".join("'" + word + "'" for word in words)
        script = f"""
            source <({LOCKSTEP} completions bash)
            COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
            _lockstep
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return bash(script, folder).split()

    def test_is_bound_to_the_command(self):
        text = bash(f"source <({LOCKSTEP} completions bash); complete -p lockstep")
        self.assertEqual(text.strip(), "complete -F _lockstep lockstep")

    def test_completes_commands(self):
        self.assertEqual(self.offered("lockstep", ""), COMMANDS)
        self.assertEqual(self.offered("lockstep", "in"), ["inspect"])
        self.assertEqual(self.offered("lockstep", "--v"), ["--version"])
        self.assertEqual(self.offered("lockstep", "help", "cal"), ["calibrate"])

    def test_completes_options_of_that_command_alone(self):
        self.assertEqual(self.offered("lockstep", "run", "--mo"), ["--model", "--modes"])
        self.assertEqual(self.offered("lockstep", "judge", "--mo"), ["--model"])
        self.assertNotIn("--point", self.offered("lockstep", "run", "--point"))

    def test_completes_choices_faults_points_and_words(self):
        self.assertEqual(self.offered("lockstep", "run", "--dtype", "b"), ["bf16"])
        self.assertEqual(self.offered("lockstep", "run", "--format", "=", "js"), ["json"])
        self.assertEqual(self.offered("lockstep", "run", "--format", "="),
                         ["table", "json", "csv"])
        self.assertEqual(self.offered("lockstep", "run", "-d", ""), ["cpu", "cuda"])
        faults = [row.split(",")[0] for row in said("faults", "--format", "csv").split("\n")[1:-1]]
        self.assertEqual(self.offered("lockstep", "run", "--fault", ""), faults)
        points = [row.split(",")[0] for row in said("points", "--format", "csv").split("\n")[1:-1]]
        self.assertEqual(self.offered("lockstep", "run", "--points", ""), points)
        self.assertEqual(self.offered("lockstep", "inspect", "x", "--point", "embed,attn.q"),
                         ["embed,attn.q", "embed,attn.q_norm", "embed,attn.q_rope"])
        self.assertIn("budget", self.offered("lockstep", "judge", "--explain", ""))
        self.assertEqual(self.offered("lockstep", "run", "--prompt", ""), [])

    def test_completes_files_and_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "once.trace"))
            os.mkdir(os.path.join(folder, "other"))
            with open(os.path.join(folder, "once.journal"), "w", encoding="utf-8"):
                pass
            self.assertEqual(set(self.offered("lockstep", "inspect", "on", folder=folder)),
                             {"once.trace", "once.journal"})
            self.assertEqual(set(self.offered("lockstep", "run", "-m", "o", folder=folder)),
                             {"once.trace", "other"})


@unittest.skipUnless(shutil.which("zsh"), "there is no zsh here")
class Zsh(unittest.TestCase):
    def test_is_a_script_that_zsh_reads_and_binds(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "_lockstep")
            with open(path, "w", encoding="utf-8") as file:
                file.write(said("completions", "zsh"))
            subprocess.run(["zsh", "-n", path], check=True)
            script = f"""
                autoload -Uz compinit && compinit -u -d {folder}/dump
                source {path}
                print $_comps[lockstep]
            """
            done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True,
                                  check=True)
            self.assertEqual((done.stdout, done.stderr), ("_lockstep\n", ""))

    def test_completes_on_a_terminal(self):
        """A zsh that a person types to: each line ends in the tabulator's key and Enter."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_lockstep"), "w", encoding="utf-8") as file:
                file.write(said("completions", "zsh"))
            shell = Terminal(["zsh", "-f", "-i"])
            shell.type(f"fpath=({folder} $fpath); autoload -Uz compinit; "
                       f"compinit -u -d {folder}/dump; "
                       "lockstep() { print -r ran: $*. }; print rea''dy\n")
            shell.wait_for("ready")
            for keys, line in (("insp", "inspect"), ("run --dty", "run --dtype"),
                               ("run --dtype b", "run --dtype bf16"),
                               ("run --fault rope-interl", "run --fault rope-interleaved")):
                shell.type(f"lockstep {keys}\t\n")
                shell.wait_for(f"ran: {line}.")
            shell.type("exit\n")
            self.assertEqual(shell.end(), 0)


class Man(unittest.TestCase):
    def test_is_clean(self):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(said("man"))
            file.flush()
            for program in (["man", "--warnings", "-l"],
                            ["mandoc", "-T", "lint", "-W", "error"]):
                if not shutil.which(program[0]):
                    continue
                done = subprocess.run([*program, file.name], capture_output=True, text=True,
                                      check=False, env={**os.environ, "MANWIDTH": "80"})
                self.assertEqual(done.stderr, "", program)
                self.assertEqual(done.returncode, 0, (program, done.stdout[-2000:]))

    def test_has_every_command_and_option(self):
        text = said("man").replace("\\-", "-")
        for command in COMMANDS:
            self.assertIn(f"\n.SS lockstep {command}\n", text)
            for option in re.findall(r"^  .*?(--[\w-]+)", said(command, "--help"), re.M):
                self.assertIn(option, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
