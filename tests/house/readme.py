"""Every command that the README shows exists, with every option that it shows, and every path."""
import re
import subprocess

import house


def commands(text):
    """The words of what stands in fenced and indented blocks and between backticks, by line.

    Continued lines are joined; what follows a pipe or another command is cut off.
    """
    text = text.replace("\\\n", " ")
    fenced = r"^```\w*\n(.*?)^```"
    blocks = re.findall(fenced, text, re.M | re.S)
    text = re.sub(fenced, "", text, flags=re.M | re.S)
    blocks += re.findall(r"^    (.*)$", text, re.M)
    blocks += [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", text)]
    for line in "\n".join(blocks).splitlines():
        words = re.split(r"\s[|>;#&]|;", line.strip().removeprefix("$ "))[0].split()
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
            if words[1].isupper() or words[1][0].isdigit():  # a placeholder, a version
                continue
            shown += 1
            text = help_of(binary, *([] if words[1].startswith("-") else [words[1]]))
            if text is None:
                yield f"README.md: lockstep has no command {words[1]}: {line}"
                continue
            for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
                if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
                    yield f"README.md: lockstep {words[1]} has no option {option}: {line}"
        elif "/" in words[0] and words[0].split("/")[0] in house.ROOMS:
            if not (root / words[0]).exists():
                yield f"README.md: there is no {words[0]}: {line}"
    if not shown:
        yield "README.md: shows no lockstep command"


if __name__ == "__main__":
    house.run(problems)
