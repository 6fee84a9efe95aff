# SPDX-License-Identifier: LGPL-2.1-or-later
"""The messages that a person may see, read from the source: templates with ``…`` for values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from efuse import errors, locations

__all__ = ["ERRORS", "in_c", "in_python"]

ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.EfuseError)
}
"""The names of the package's exceptions."""

_CLICK = {"BadParameter", "UsageError", "fail"}
_CALL = re.compile(r'(?:fprintf\(stderr|fuse_log\(\w+|bpf_log\(\w+|pr_\w+\(),?\s*"(.*?)"')
_LEVELS = {"error", "info", "warning"}


def in_python() -> dict[str, str]:
    """Return the messages of the package, with the place of each."""
    found: dict[str, str] = {}
    for path in sorted(locations.package().rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _is_message(node):
                place = f"{path.relative_to(locations.package())}:{node.lineno}"
                for template in _templates(node.args[0], tree):
                    found[template] = place
                    place = f"{path.relative_to(locations.package())}:{node.lineno}"
    return found


def in_c(*sources: Path) -> dict[str, str]:
    """Return the messages of libefuse and the modules: all that is printed, logged or a reason."""
    found = {}
    for path in sources:
        text = path.read_text()
        calls = _CALL.findall(text)
        reasons = re.findall(r"^const char \*\w+_reason\(.*?^}", text, re.MULTILINE | re.DOTALL)
        calls += [output for reason in reasons for output in re.findall(r'return "(.*?)"', reason)]
        for output in calls:
            found[re.sub(r"%\w+", "…", output.removesuffix("\\n"))] = path.name
    return found


def _is_message(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ERRORS
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id in ("_log", "log", "logger"):
        return function.attr in _LEVELS
    return function.attr in ERRORS | _CLICK


def _templates(message: ast.expr, tree: ast.AST) -> Iterator[str]:
    """Iterate over the possible values of *message*; a name stands for returns of functions."""
    if isinstance(message, ast.Name):
        for node in ast.walk(tree):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                for value in node.value.elts:
                    yield from (output for output in [_template(value)] if output.strip("…"))
        return
    yield _template(message)


def _template(message: ast.expr) -> str:
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        # The text after the first line is a log of another program.
        output = re.sub(r"%[rsd]", "…", message.value)
        return output.partition(":\n")[0]
    if isinstance(message, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in message.values
        ]
        return "".join(parts).partition(":\n")[0]
    if isinstance(message, ast.BinOp):
        return _template(message.left) + _template(message.right)
    return "…"
