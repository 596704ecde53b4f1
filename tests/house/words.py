"""No macros of ours, nothing unfinished, no disabled test, no path outside the project; comments of
the product are sentences with a subject."""
import re

import house

# Written in pieces, so that this file passes its own rule.
EVERYWHERE = [
    (re.compile(r"\bTO" r"DO\b|\bFIX" r"ME\b|\bXX" r"X\b"), "is unfinished"),
    (re.compile(r"not " r"implemented\b", re.I), "is unfinished"),
    (re.compile(r"(?<![\w.])/(?:wo" r"rk|ho" r"me|ro" r"ot)/|\.\./sha" r"red\b"),
     "names a path outside the project"),
]
IN_CODE = [
    (re.compile(r"^[ \t]*#[ \t]*define\b"), "defines a macro"),
    (re.compile(r"\bDISABLED_|^[ \t]*#[ \t]*if[ \t]+0\b"), "is switched off"),
    (re.compile(r"\bGTEST_SKIP\(\)\s*;"), "skips a test without a reason"),
]
COMMENT = re.compile(r"^\s*//\s*(?P<text>.*)")
# A comment that begins so is a fragment without a subject.
OPENERS = re.compile(r"(Of|What|Whose|As)\b")
TOP = ("CMakeLists.txt", "README.md", ".ci/run", ".clang-format", ".clang-tidy", ".gitignore")


def texts(root):
    for path in [*(top for top in TOP if (root / top).is_file()), *house.files(root)]:
        try:
            yield path, (root / path).read_text()
        except UnicodeDecodeError:
            continue  # a picture or a tensor has no words


def fragments(text):
    """Number and line of each comment block that begins with an opener."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        comment = COMMENT.match(line)
        if comment and not inside and OPENERS.match(comment["text"]):
            yield number, line.strip()
        inside = bool(comment)


def problems(root):
    for path, text in texts(root):
        rules = list(EVERYWHERE)
        if any(path.endswith(suffix) for suffix in house.CODE):
            rules += IN_CODE
            if not path.startswith("tests/"):
                for number, line in fragments(text):
                    yield f"{path}:{number}: begins a comment without a subject: {line}"
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, trouble in rules:
                if pattern.search(line):
                    yield f"{path}:{number}: {trouble}: {line.strip()}"


if __name__ == "__main__":
    house.run(problems)
