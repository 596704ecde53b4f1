"""clang-tidy finds nothing, by the checks of .clang-tidy.

Nearly all of its time goes into what a file includes, and the files of a room include the same:
it reads the files of a folder as one, as `tools/setup --command` compiles them. Two files that keep
a helper of one name clash there: they share it or name it apart, but in the folders of OWN_NAMES,
whose files it reads alone then.

Exit 77, skipped: this machine has no clang-tidy, or its clang no omp.h.
"""
import concurrent.futures
import json
import pathlib
import re
import shlex
import shutil
import sys
import tempfile

import house

SKIPPED = 77
OWN_NAMES = {"src/judge/ops"}  # UNITY_BUILD is off for them


def flags_of(command):
    """The arguments of a compiler's command but for its input, its output and its own compiled
    headers."""
    arguments = iter(shlex.split(command)[1:])
    for argument in arguments:
        if argument in {"-o", "-c", "-include"}:
            next(arguments)
        else:
            yield argument


def commands_of(build):
    """By file, the command that compiles it, maybe with others that CMake put together in one."""
    known = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    commands = {}
    for entry in known:
        path = pathlib.Path(entry["file"])
        text = path.read_text() if path.parent.name == "Unity" else ""
        for file in re.findall(r'^#include "(.+)"$', text, re.M) or [entry["file"]]:
            commands[file] = entry["command"]
    return commands


def groups(root, build):
    """The product's files by folder and flags, the largest group first.

    Files of rooms that this build leaves out (LibTorch, CUDA) have no command to read them by;
    tests cost as much as all the rest and have themselves to find their bugs.
    """
    commands = commands_of(build)
    found = {}
    for path in house.files(root, {".cc"}):
        command = commands.get(str(root / path))
        if command and not path.startswith("tests/"):
            flags = tuple(flags_of(command))
            found.setdefault((str(pathlib.Path(path).parent), flags), []).append(path)
    return sorted(((paths, flags) for (_, flags), paths in found.items()), key=lambda g: -len(g[0]))


def lacks_openmp():
    """Whether clang has no omp.h (Debian's libomp-dev): it stumbles over what g++ has."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as file:
        file.write("#include <omp.h>\n")
        file.flush()
        return house.said_by(["clang-tidy", "--quiet", "--checks=misc-static-assert", file.name,
                              "--", "-fopenmp"])


def said_of(root, paths, flags):
    """What clang-tidy says of some files that it reads as one."""
    with tempfile.TemporaryDirectory() as folder:
        together = pathlib.Path(folder) / "together.cc"
        together.write_text("".join(f'#include "{root / path}"\n' for path in paths))
        # Clang's own warnings are about g++'s options as often as about the code: g++ warns itself.
        return house.said_by(["clang-tidy", "--quiet", f"--config-file={root / '.clang-tidy'}",
                              r"--header-filter=\.cc$", together, "--", *flags,
                              "-Wno-everything"])


def clashing(root, paths, said):
    """The files in which the compiler itself stumbled: names that another file of the group has."""
    stumbled = set(re.findall(r"^(\S+?):\d+:\d+: error: .*\[clang-diagnostic-error\]", said, re.M))
    return [path for path in paths if str(root / path) in stumbled]


def trouble_with(root, paths, flags):
    said = said_of(root, paths, flags)
    while said and len(paths) > 1 and (alone := clashing(root, paths, said)):
        if str(pathlib.Path(paths[0]).parent) not in OWN_NAMES:
            return f"names clash where the files of a folder are compiled as one:\n{said[:6000]}"
        paths = [path for path in paths if path not in alone] or alone[:1]
        troubles = [trouble_with(root, [path], flags) for path in alone if path not in paths]
        if troubles := list(filter(None, troubles)):
            return "\n".join(troubles)
        said = said_of(root, paths, flags)
    return said and f"{', '.join(paths)}:\n{said[:6000]}"


def problems(root, build):
    checks = (root / ".clang-tidy").read_text()

    def trouble(group):
        paths, flags = group
        return house.remembered(root, paths, build, checks + " ".join(flags),
                                lambda: trouble_with(root, paths, flags))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield from filter(None, pool.map(trouble, groups(root, build)))


if __name__ == "__main__":
    if not shutil.which("clang-tidy"):
        print("skipped: there is no clang-tidy on this machine")
        sys.exit(SKIPPED)
    if lacks_openmp():
        print("skipped: clang has no omp.h on this machine, as libomp-dev has it")
        sys.exit(SKIPPED)
    house.run(problems)
