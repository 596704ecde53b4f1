"""Every command that the README shows exists, with every option that it shows."""
import re
import shlex
import subprocess

import house


def commands(text):
    """The command lines of the shell blocks, continued lines joined and pipes cut off."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for stop in ("|", ">", ";", "&&"):
                words = words[:words.index(stop)] if stop in words else words
            if words:
                yield line.strip(), words


def help_of(binary, *command):
    done = subprocess.run([binary, *command, "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def problems(root, binary):
    if not (root / "README.md").is_file():
        yield "README.md: is missing"
        return
    shown = 0
    for line, words in commands((root / "README.md").read_text()):
        if words[0].split("/")[-1] == "lockstep" and len(words) > 1:
            shown += 1
            text = help_of(binary, *([] if words[1].startswith("-") else [words[1]]))
            if text is None:
                yield f"README.md: lockstep has no command {words[1]}: {line}"
                continue
            for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
                if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
                    yield f"README.md: lockstep {words[1]} has no option {option}: {line}"
        elif "/" in words[0] and words[0].split("/")[0] in house.ROOMS:
            if not (root / words[0]).is_file() or not (root / words[0]).stat().st_mode & 0o100:
                yield f"README.md: {words[0]} is no script that can be run: {line}"
    if not shown:
        yield "README.md: shows no lockstep command in a ```sh block"


if __name__ == "__main__":
    house.run(problems)
