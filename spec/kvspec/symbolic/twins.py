"""Broken twins: an obligation's own source with one exchange made, which must be refuted.

A verdict "confirmed" or "proved" says nothing if the tool was asked nothing: because a
precondition contradicts itself, or because the claim was taken for an assumption. A twin that
differs by one clause and is refuted says that the question was asked.
"""

import ast
from typing import NamedTuple


class Twin(NamedTuple):
    """The obligation `of`, with `instead` where it has `written`; `law` is what must then fail."""

    of: str
    written: str
    instead: str
    law: str = ""

    def __str__(self) -> str:
        return f"{self.written} -> {self.instead}"


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The public top-level functions of a module's source, by name."""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in found if not node.name.startswith("_")}


def broken(source: str, twin: Twin, name: str) -> str:
    """The source of the twin as a function `name`.

    Raises `ValueError` where it is not clear what is to be exchanged.
    """
    text = ast.get_source_segment(source, functions(source)[twin.of])
    if text is None or text.count(twin.written) != 1:
        raise ValueError(f"{twin.written!r} must be in {twin.of} exactly once")
    return text.replace(twin.written, twin.instead).replace(twin.of, name, 1)
