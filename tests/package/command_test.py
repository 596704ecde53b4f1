"""`tools/setup --command` builds whatever `cmake --install` wants: command_test.py NINJA BUILD."""
import pathlib
import re
import subprocess
import sys

OPTIONAL = {"liblockstep_cuda.so", "liblockstep_collectives_cuda.so"}


def made_for(ninja, build, target):
    """Names of the libraries and the programs that the target is made of."""
    commands = subprocess.run([ninja, "-C", build, "-t", "commands", target], capture_output=True,
                              text=True, check=True).stdout
    return {pathlib.Path(name).name for name in re.findall(r" (?:-o|qc) (\S+)", commands)}


def wanted(build):
    """Names of the libraries and the programs of the build folder that its install scripts copy."""
    for script in build.rglob("cmake_install.cmake"):
        for path in re.findall(rf'"{re.escape(str(build))}/([^"]+)"', script.read_text()):
            name = pathlib.Path(path).name
            if re.search(r"\.(a|so)$", name) or name == "lockstep":
                yield name


def main():
    ninja, build = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    names = set(wanted(build)) - OPTIONAL
    assert len(names) > 10, f"too few files are installed: {sorted(names)}"
    missing = names - made_for(ninja, build, "command")
    assert not missing, f"the target `command` does not make {sorted(missing)}, which are installed"


main()
