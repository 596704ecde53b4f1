"""The figures by which the house is compared with other codebases, each held to its goal.

They are of the product: the C++ and CUDA files of the rooms but tests/. Their rules:

- lines: all of a file, blank ones too. "Per 1000" is per 1000 of these.
- functions: as sizes.py finds them, head and body.
- comments: lines that hold a comment and nothing else, of the lines that are not blank.
- types and free functions: what a .h file defines or declares outside of any class and function.
  A type counts where it is defined: no declaration ahead, no alias, no nested type. An overload and
  a twin `decltype(add) add_cuda` are functions of their own. A .cuh file is no interface, as the
  .cu files of one kernel include it.
- class: the lines from its head to its end, in any product file.
- an op: a row of kOps in kernels/ops.h. A file names it that has, outside of comments,
  `Ops::op`, `lockstep::op`, `decltype(op)`, `op_cuda`, `check_op`, `lockstep_op`, a member `op` of
  a variable of type Ops, a call `op(context, ..)`, or a text that is the name and no more, unless
  the file has a field of that name, as results have their `argmax`. So a sentence for people,
  at::matmul or a configuration's `rope` is none. Not counted are
    the kernels, which are the op's own or those of ops that it is a part of: kernels/ itself,
    kernels/{cpu,cuda,persistent}, all but the tables ops.h, lockstep_ops.h and cuda_ops.cu;
    the forward passes, which call it: src/model, src/instructions, the executor of ranks, the
    models of reference/; and the faults, which break it.
"""
import functools
import re

import house
import sizes

KERNELS = re.compile(r"kernels/(cpu/|cuda/|persistent/)?[^/]+")
TABLES = {"kernels/ops.h", "kernels/lockstep_ops.h", "kernels/cuda/cuda_ops.cu"}
FORWARD_PASSES = re.compile(
    r"src/(model|instructions)/|src/ranks/rank_executor\.cc|reference/(qwen|error_sharer)\.cc")
FAULTS = re.compile(r"(src|kernels)/faults/")

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
OPENS_NAMESPACE = re.compile(r"^(inline\s+)?namespace\b[^=(]*$|^extern$")
TYPE = re.compile(r"(typedef\s+)?(class|struct|union|enum)\b[^()]*\{")
NESTED_TYPE = re.compile(r"(class|struct|union|enum)\s+(class\s+)?\w+::")
NO_FUNCTION = re.compile(r"(using|static_assert|typedef|friend)\b")
COMMENT = re.compile(r"\s*(//|/\*|\*)")


@functools.cache  # each file is asked for every op
def bare(text):
    """Code alone: no comment, no text, no line of the preprocessor."""
    return PREPROCESSOR.sub(lambda m: "\n" * m.group().count("\n"),
                            house.without_comments_and_strings(text))


def without_template(head):
    """A declaration without attributes and what stands before it of a template."""
    head = re.sub(r"\[\[.*?\]\]", "", head, flags=re.S).strip()
    while head.startswith("template"):
        depth, parentheses, end = 0, 0, 0
        for end, char in enumerate(head):
            parentheses += (char == "(") - (char == ")")
            if not parentheses:
                depth += (char == "<") - (char == ">")
            if char == ">" and not depth and not parentheses:
                break
        head = re.sub(r"^requires\s*\(?[^)]*\)?", "", head[end + 1:].strip()).strip()
    return head


def is_type(head):
    return bool(TYPE.match(head)) and not NESTED_TYPE.match(head)


def is_function(head):
    before = head.split("(")[0]
    return ("(" in head and not NO_FUNCTION.match(head) and not TYPE.match(head)
            and "{" not in before and ("=" not in before or "operator" in before))


def declarations(text):
    """What stands at namespace scope, a text each, bodies as "{}"."""
    inside, parentheses, head = [], 0, ""
    for char in bare(text):
        outside = all(is_namespace for is_namespace in inside)
        if char == "{":
            opens = outside and not parentheses and OPENS_NAMESPACE.match(head.strip())
            inside.append(bool(opens))
            head = "" if opens else head + "{" * (outside and not parentheses)
        elif char == "}":
            if inside.pop():
                head = ""
            elif all(inside) and not parentheses:
                head += "}"
                if is_function(without_template(head)):
                    yield without_template(head)
                    head = ""
        elif outside and char == ";" and not parentheses:
            yield without_template(head)
            head = ""
        elif outside:
            parentheses += (char == "(") - (char == ")")
            head += char


def classes(text):
    """(name, lines) of each class and struct, nested ones too."""
    inside, head = [], ""
    for number, line in enumerate(bare(text).split("\n")):
        for char in line + "\n":
            if char == "{":
                found = re.search(r"\b(?:class|struct)\s+([\w:]+)[^()=]*$", head)
                inside.append((found[1], number - head.strip().count("\n")) if found else None)
                head = ""
            elif char == "}":
                if inside and (opened := inside.pop()):
                    yield opened[0], number - opened[1] + 1
                head = ""
            else:
                head = "" if char == ";" else head + char


def ops(root):
    """The names of each op: its entry of Ops, and its name for users where that is another."""
    rows = re.findall(r'OpRow\{"(\w+)",\s*&Ops::(\w+)', (root / "kernels/ops.h").read_text())
    return {entry: {entry, name} for name, entry in rows}


def names(text, op):
    """Whether the text of a file names an op of these names."""
    if not any(name in text for name in op):
        return False
    code = bare(text)
    tables = "|".join({r"\w*ops_?(?:\(\))?", *re.findall(r"\bOps&?\s+(\w+)\b", code)})
    any_of = "|".join(sorted(op))
    in_code = (rf"\bOps::(?:{any_of})\b|\blockstep::(?:{any_of})\b|\bdecltype\((?:{any_of})\)"
               rf"|\b(?:check|lockstep)_(?:{any_of})\b|\b(?:{any_of})_cuda\b"
               rf"|\b(?:{tables})\.(?:{any_of})\b|(?<![\w.:>])(?:{any_of})\(context\b"
               rf"|(?<=[{{,\n ])\.(?:{any_of}) = OnDevice")
    if re.search(in_code, code):
        return True
    if re.search(rf"(?:\.|->)(?:{any_of})\b(?!\()", code):
        return False
    comments = r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*"
    literals = re.sub(rf'("(?:\\.|[^"\\\n])*")|{comments}', lambda m: m[1] or "", text,
                      flags=re.M | re.S)
    return re.search(rf'(?<!")"(?:{any_of})"(?!")', literals) is not None


def counts(path):
    """Whether a file that names an op is counted."""
    if path in TABLES:
        return True
    return not (KERNELS.fullmatch(path) or FORWARD_PASSES.match(path) or FAULTS.match(path))


def naming(root, product):
    """For each op the files that name it."""
    texts = {path: text for path, text in product.items() if counts(path)}
    return {op: [path for path, text in texts.items() if names(text, all_names)]
            for op, all_names in ops(root).items()}


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0


def figures(root):
    """(name, figure, least, most, what it is of) of each."""
    product = {path: (root / path).read_text() for path in house.files(root, house.CODE)
               if not path.startswith("tests/")}
    every = [line for text in product.values() for line in text.splitlines()]
    thousands = max(len(every), 1) / 1000
    headers = [head for path, text in product.items() if path.endswith(".h")
               for head in declarations(text)]
    types, free = sum(map(is_type, headers)), sum(map(is_function, headers))
    casts = sum(bare(text).count("static_cast<") for text in product.values())
    lengths = [length for text in product.values() for _, length in sizes.functions(text)]
    shown = [line for line in every if line.strip()]
    comments = 100 * sum(bool(COMMENT.match(line)) for line in shown) / max(len(shown), 1)
    found = [(length, name) for text in product.values() for name, length in classes(text)]
    large = [f"{name}: {length}" for length, name in found if length > 200]
    by_op = naming(root, product)
    most = max(by_op, key=lambda op: len(by_op[op]), default="")
    tools = {path: text.count("\n") for path, text in product.items() if path.startswith("tools/")}
    yield "functions, lines, p90", quantile(lengths, 0.9), 0, 24, f"{len(lengths)} of them"
    yield "functions, lines, most", max(lengths, default=0), 0, sizes.FUNCTION_LINES, ""
    yield "comments, % of lines", comments, 12, 18, f"{len(every)} lines"
    yield "types in headers per 1000", types / thousands, 0, 5.5, f"{types} of them"
    yield "free functions in headers per 1000", free / thousands, 0, 9, f"{free} of them"
    yield "static_cast per 1000", casts / thousands, 0, 10, f"{casts} of them"
    yield "classes of over 200 lines", len(large), 0, 0, ", ".join(large)
    yield ("files that name an op, most", len(by_op.get(most, [])), 0, 6,
           ": ".join(filter(None, [most, ", ".join(by_op.get(most, []))])))
    yield "lines in tools/", sum(tools.values()), 0, sizes.TOOLS_LINES - 1, ""


def problems(root):
    for name, value, least, most, of in figures(root):
        goal = f"{least} to {most}" if least else f"at most {most}"
        print(f"{name:36} {value:8.2f}   {goal:14} {of}".rstrip())
        if not least <= value <= most:
            yield f"{name}: {value:.2f}, the goal is {goal}: {of}"


if __name__ == "__main__":
    house.run(problems)
