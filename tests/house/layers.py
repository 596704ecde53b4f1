"""Each room looks only into rooms that it may, and foreign headers stay at home."""
import pathlib
import re

import house

# A folder is a room, and a file's room is the nearest folder around it that stands here.
BASE = {"kernels/base"}  # the tensor and threads, which know no op
FILES = BASE | {"kernels/files"}
TRACES = FILES | {"probes", "traces"}
WEIGHTS = FILES | {"src/weights"}
MODEL = WEIGHTS | {"kernels", "probes", "src/model"}
JUDGE = TRACES | {"src/stats", "src/judge"}
REPORT = JUDGE | {"src/diff", "src/report", "src/screen"}
SESSION = (REPORT | MODEL | {"kernels/bench", "kernels/faults", "kernels/plugin", "reference",
                             "src/audit", "src/causes", "src/engine", "src/faults",
                             "src/instructions", "src/opinion", "src/ranks", "src/ranks/judge",
                             "src/schedule", "src/session"})

MAY_INCLUDE = {
    "kernels/base": set(),
    "kernels/cpu": BASE,
    "kernels/cuda": BASE | {"kernels"},
    "kernels": BASE | {"kernels/cpu", "kernels/cuda"},
    "kernels/persistent": BASE | {"kernels", "kernels/cuda"},
    "kernels/plugin": BASE | {"kernels"},
    "kernels/bench": BASE | {"kernels/cpu", "kernels/cuda"},
    "kernels/faults": BASE | {"kernels", "kernels/cuda"},
    "probes": BASE,
    "kernels/files": BASE,
    "traces": FILES | {"probes"},
    "src/screen": BASE,
    "src/help": BASE | {"src/screen"},
    "src/weights": FILES | {"probes"},
    "src/model": MODEL,
    "src/engine": MODEL,
    "src/ranks": MODEL | {"src/engine"},
    # What the ranks show, joined and judged.
    "src/ranks/judge": JUDGE | WEIGHTS | {"src/ranks"},
    # The way between the ranks, by LibTorch.
    "src/collectives": BASE | {"src/ranks"},
    "src/faults": MODEL | {"src/engine", "src/instructions", "src/ranks", "src/schedule"},
    "src/stats": BASE | {"probes"},
    "src/judge": TRACES | {"src/stats"},
    "src/audit": JUDGE,
    # No bug of the engine's arithmetic: what is held against the engine is the oracle's own.
    "src/causes": JUDGE,
    "src/diff": JUDGE,
    "src/report": JUDGE | {"src/diff", "src/screen"},
    "src/schedule": JUDGE | WEIGHTS | {"src/report"},
    "src/instructions": MODEL | {"src/schedule"},
    "src/capture": TRACES | WEIGHTS,
    # Another hand than the judge and its oracle: it may look into neither.
    "src/opinion": TRACES | WEIGHTS,
    "src/session": SESSION,
    "src/replay": SESSION,
    "src/opcheck": SESSION | {"src/replay"},
    "src/check": SESSION,
    "src/selftest": SESSION,
    "src/bench": SESSION,
    "reference": JUDGE | WEIGHTS,
    "tools": None,  # everything
    "tests": None,
}

# Their types are the user's too.
USERS_INTERFACE = {"kernels/lockstep_ops.h", "traces/lockstep_trace.h"}

# Foreign headers, and the folders where they are at home. A room's tests live where the room does.
FOREIGN = [
    (r"cuda|cublas|cub/|cooperative_groups|mma\.h", {"kernels"}),
    (r"dnnl|oneapi/|omp\.h", {"kernels"}),
    (r"dlpack/", {"kernels", "traces", "src/capture"}),
    (r"(imm|x86)intrin\.h|cpuid\.h", {"kernels"}),
    (r"boost/math/", {"src"}),
    (r"hdf5|H5", {"traces"}),
    (r"zlib\.h", {"traces", "src/replay"}),
    (r"xxhash\.h", {"kernels", "probes", "traces", "src/weights"}),
    (r"pcre2|utf8proc", {"src/weights"}),
    (r"torch/|ATen/|c10/", {"reference", "src/collectives"}),
    (r"CLI/", {"tools"}),
    (r"gtest/|gmock/", {"tests"}),
    (r"sanitizer/", {"fuzz"}),
    (r"nlohmann/", set(MAY_INCLUDE)),
    (r"(sys/\w+|linux/\w+|unistd|fcntl|dlfcn|link|pthread|sched|poll|signal|spawn|fnmatch|malloc"
     r"|execinfo)\.h", set(MAY_INCLUDE)),
]
ANYWHERE = r"fmt/\w+\.h|\w+"  # fmt and the standard library, headers too


def room_of(path):
    around = [room for room in MAY_INCLUDE if path.startswith(room + "/")]
    return max(around, key=len, default=None)


def own_include(root, path, room, include):
    target = room_of(include)
    made_from = root / f"{include}.in"  # by the build
    if target is None or not ((root / include).is_file() or made_from.is_file()):
        return f'{path}: "{include}" is no path from the root of the project'
    allowed = MAY_INCLUDE[room]
    if allowed is not None and target != room and target not in allowed:
        return f"{path}: {room} may not look into {target} ({include})"
    if room not in ("tools", "tests") and target in ("tools", "tests"):
        return f"{path}: nothing looks into {target} ({include})"
    return None


def foreign_include(path, include):
    if re.fullmatch(ANYWHERE, include):
        return None
    homes = next((homes for name, homes in FOREIGN if re.match(name, include)), None)
    if homes is None:
        return f"{path}: <{include}> has no home in the table of tests/house/layers.py"
    if path.endswith(".h") and not path.startswith("tests/") and path not in USERS_INTERFACE:
        return f"{path}: <{include}> is foreign, and headers name no foreign type"
    if path.startswith("kernels/") and re.match("cuda|cublas", include) and path.endswith(".cc"):
        return f"{path}: <{include}> belongs in a .cu file"
    inside = path.removeprefix("tests/")
    if not any(inside.startswith(home + "/") for home in homes) and not (
            path.startswith("tests/") and "tests" in homes):
        return f"{path}: <{include}> is at home in {', '.join(sorted(homes))}"
    return None


def problems(root):
    for path in house.files(root, house.CODE):
        room = room_of(path)
        if room is None:
            yield f"{path}: stands in no room of the table of tests/house/layers.py"
            continue
        text = pathlib.Path(root / path).read_text()
        for kind, include in re.findall(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)', text, re.M):
            found = (own_include(root, path, room, include) if kind == '"'
                     else foreign_include(path, include))
            if found:
                yield found


if __name__ == "__main__":
    house.run(problems)
