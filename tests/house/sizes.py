"""Files under 500 lines, functions of at most 60, lines of at most 100 columns; thin commands."""
import ast
import re

import house

FILE_LINES, FUNCTION_LINES, COLUMNS = 500, 60, 100
COMMAND_LINES, TOOLS_LINES = 150, 2000  # what a command does is a room of src

CONTAINER = re.compile(r"^(inline |export )?\s*(namespace\b|extern\s*$)"
                       r"|\b(class|struct|union|enum)\b[^()]*$")


def is_function(head):
    """Whether `head {` opens a function: it has a parameter list and is no table or container."""
    if "(" not in head or CONTAINER.search(head):
        return False
    before = head.split("(")[0]
    return "=" not in before or "operator" in before


def functions(text):
    """(first line, lines) of every function body outside other functions, counted with its head."""
    text = house.without_comments_and_strings(text)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    inside = []  # per open brace: the line of a function's head, None for a container, False else
    head, line, head_line = "", 1, 1
    for char in text:
        if char == "{":
            nested = any(open_ is not None for open_ in inside)
            if nested:
                inside.append(False)
            elif is_function(head):
                inside.append(head_line)
            else:
                inside.append(None if CONTAINER.search(head) else False)
            head = ""
        elif char == "}":
            start = inside.pop() if inside else False
            if start:
                yield start, line - start + 1
            head = ""
        elif char == ";":
            head = ""
        else:
            if not head.strip():
                head, head_line = "", line
            head += char
        line += char == "\n"


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            yield node.lineno, node.end_lineno - node.lineno + 1


def problems(root):
    tools = {path: (root / path).read_text() for path in house.files(root, house.CODE)
             if path.startswith("tools/")}
    for path, text in tools.items():
        if "_command(Args" in text and path.endswith(".cc") and text.count("\n") >= COMMAND_LINES:
            yield (f"{path}: {text.count(chr(10))} lines, a command has under {COMMAND_LINES}: "
                   "what it does belongs in a room of src")
    total = sum(text.count("\n") for text in tools.values())
    if total >= TOOLS_LINES:
        yield f"tools: {total} lines, they have under {TOOLS_LINES}: move work into rooms of src"
    for path in house.files(root, house.CODE | {".py"}):
        text = (root / path).read_text()
        lines = text.splitlines()
        if len(lines) >= FILE_LINES and not path.startswith("tests/"):
            yield f"{path}: {len(lines)} lines, a file has under {FILE_LINES}: split it"
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, a line has at most {COLUMNS}"
        find = python_functions if path.endswith(".py") else functions
        for number, length in find(text):
            if length > FUNCTION_LINES:
                yield (f"{path}:{number}: a function of {length} lines, it has at most "
                       f"{FUNCTION_LINES}: split it")


if __name__ == "__main__":
    house.run(problems)
