"""Broken twins: an obligation's own source with one exchange made, which must be refuted.

A verdict "confirmed" or "proved" says nothing if the tool was asked nothing: because a
precondition contradicts itself, or because the claim was taken for an assumption. A twin that
differs by one clause and is refuted says that the question was asked.
"""

import ast
from typing import NamedTuple


class Twin(NamedTuple):
    """The obligation `of`, with `instead` where it has `written`.

    `laws` names what must then fail, where an obligation claims several things. `within` is the
    function in which the exchange is made, where it is not the obligation itself.
    """

    of: str
    written: str
    instead: str
    laws: tuple[str, ...] = ()
    within: str = ""

    def __str__(self) -> str:
        return f"{self.written} -> {self.instead}"


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The public top-level functions of a module's source, by name."""
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in found if not node.name.startswith("_")}


def broken(source: str, twin: Twin, name: str) -> str:
    """The source of the twin as a function `name`."""
    return _exchanged(_text(source, twin.of), twin).replace(twin.of, name, 1)


def exchanged_in(source: str, twin: Twin) -> str:
    """The source of the whole module, with the twin's exchange made in it."""
    text = _text(source, twin.within or twin.of)
    return source.replace(text, _exchanged(text, twin))


def _exchanged(text: str, twin: Twin) -> str:
    if text.count(twin.written) != 1:
        raise ValueError(f"{twin.written!r} must be in {twin.within or twin.of} exactly once")
    return text.replace(twin.written, twin.instead)


def _text(source: str, name: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_source_segment(source, node) or ""
    raise ValueError(f"there is no function {name}")
