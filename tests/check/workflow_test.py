"""The shell of the README's CI recipe, run step by step as a stranger would have it.

workflow_test.py ROOT BUILD: in a clean folder, with this build in the place of one that tools/setup
would make. Exit status 0: kept.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
FAULT = " --fault rope-interleaved@layer=3"


def section():
    text = (ROOT / "README.md").read_text()
    return re.search(r"^## To check in CI\n(.*?)^## ", text, re.M | re.S)[1]


def block(kind):
    return re.search(rf"^```{kind}\n(.*?)^```", section(), re.M | re.S)[1]


def steps():
    """The `run` of each step of the workflow, by the step's name."""
    found = {}
    for name, rest in re.findall(r"^      - name: (\w+)\n(.*?)(?=^      - |\Z)", block("yaml"),
                                 re.M | re.S):
        run = re.search(r"^        run: (?:\|\n)?(.*?)\Z", rest, re.M | re.S)[1]
        found[name] = "\n".join(line.strip() for line in run.splitlines())
    return found


def check_shape(test, path):
    """What the readers of JUnit's XML want of it; returns its cases by name."""
    suites = xml.etree.ElementTree.parse(path).getroot()
    test.assertEqual(suites.tag, "testsuites")
    (suite,) = suites
    test.assertEqual(suite.tag, "testsuite")
    cases = suite.findall("testcase")
    test.assertEqual([child.tag for child in suite], ["properties"] + ["testcase"] * len(cases))
    counts = {"tests": len(cases), "skipped": len(suite.findall("*/skipped")),
              "failures": len(suite.findall("*/failure")), "errors": len(suite.findall("*/error"))}
    for name, count in counts.items():
        for element in (suites, suite):
            test.assertEqual(element.get(name), str(count), name)
    test.assertTrue(all(property.get("name") for property in suite.iter("property")))
    for case in cases:
        test.assertTrue(case.get("name") and case.get("classname"))
        test.assertLessEqual(len(case), 1)
        for child in case:
            test.assertIn(child.tag, {"failure", "error", "skipped", "system-out"})
            if child.tag in {"failure", "error"}:
                test.assertTrue(child.get("message") and child.get("type"))
    names = [case.get("name") for case in cases]
    test.assertEqual(len(set(names)), len(names))
    return dict(zip(names, cases))


class Recipe(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        inside = self.folder / "lockstep"
        (inside / "build").mkdir(parents=True)
        (inside / "tests").mkdir()
        (inside / "build/lockstep").symlink_to(BUILD / "lockstep")
        (inside / "tests/data").symlink_to(ROOT / "tests/data")

    def shell(self, text, **environment):
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text], cwd=self.folder, text=True, check=False,
            capture_output=True,
            env={**os.environ, "GITHUB_STEP_SUMMARY": str(self.folder / "page.md"), **environment})

    def expect(self, done, status):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def test_every_step(self):
        self.assertEqual(list(steps()), ["build", "check"])
        script = steps()["build"].removeprefix("lockstep/").split()[0]
        self.assertTrue(os.access(ROOT / script, os.X_OK), script)
        check = steps()["check"]

        self.expect(self.shell(check), 2)  # there is no baseline yet
        self.assertFalse((self.folder / "lockstep.xml").exists())
        made = self.expect(self.shell(block("sh")), 0)
        self.assertIn("written to ci.json", made.stdout.splitlines()[-1])
        self.assertLess((self.folder / "ci.json").stat().st_size, 9000)

        passed = self.expect(self.shell(check), 0)
        self.assertEqual(passed.stderr, "")
        self.assertTrue(passed.stdout.splitlines()[-1].startswith("pass: "), passed.stdout)
        cases = check_shape(self, self.folder / "lockstep.xml")
        self.assertLessEqual({"norm", "rope", "attention", "audit", "tokens", "coverage"},
                             set(cases))
        self.assertTrue(all(case.find("failure") is None for case in cases.values()))

        # A baseline holds whichever instructions oneDNN takes, whose products are of fp32 anywhere.
        of_fp32 = check.rstrip().replace("ci.json ", "fp32.json ") + " --dtype fp32"
        self.expect(self.shell(of_fp32 + " --update", ONEDNN_MAX_CPU_ISA="SSE41"), 0)
        self.expect(self.shell(of_fp32), 0)

        failed = self.expect(self.shell(check.rstrip() + FAULT), 1)
        self.assertIn("layer 3 attn.q_rope", failed.stdout.splitlines()[-1])
        self.assertIn("::error title=lockstep%3A introduced at rope::layer 3 attn.q_rope",
                      failed.stderr)
        cases = check_shape(self, self.folder / "lockstep.xml")
        message = cases["rope"].find("failure").get("message")
        self.assertRegex(message, r"layer 3 attn.q_rope.*position \d+.*want .*got ")
        page = (self.folder / "page.md").read_text()
        self.assertRegex(page, r"(?s)### lockstep: pass.*### lockstep: pass.*### lockstep: fail")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
