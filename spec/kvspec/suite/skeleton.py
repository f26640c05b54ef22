"""The skeleton of an adapter: every method of the interface, made from the interface itself.

The core stands as code and all other capabilities as comments, so that the file can be loaded and
checked at once. Signatures and sentences are those of the protocols, and the laws those of the
rooms: nothing here repeats them.
"""

import ast
import collections.abc
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from attrs import Factory, fields, frozen

import kvspec
from kvspec import interface
from kvspec.contract import Contract
from kvspec.kernel.room import Room
from kvspec.rooms import ROOMS

_WIDTH = 100
_ROOM = _WIDTH - len("    # ")
"""What a comment within the class leaves of a line."""
_IN = "    "
_MODULES = {
    "collections.abc": frozenset(collections.abc.__all__),
    "typing": frozenset({"Any"}),
    "kvspec": frozenset(kvspec.__all__),
}
_PLAIN = re.compile(r"[\w.-]{1,60}")
_CAPABILITY = re.compile(r"Capability `(\w+)`: (.*)")

_HEAD = '''"""An allocator behind the interface of kvspec: an adapter, which only translates.

1. Build your engine in `__init__`, and write the five methods of the core. In between,
   `kvspec check {file}:Adapter`
   says by the law well-formed what is still to be written.
2. Give the engine's refusals and errors the names of the interface:
   {errors}.
3. Of the comments below, make code of each section that the engine offers: whole sections, since
   each is one capability. A method that returns copies gives pairs of blocks, in order, or None.
4. Where the engine differs on purpose, say so in the contract, each field with its reason.
   What it gets wrong is not repaired here: it comes through, and a law names it.

How to go about it: docs/how-to-adapter.md, in the repository of kvspec.
"""
'''


@frozen
class _Method:
    """A method of a protocol: its signature, the first sentence of its contract, and its names."""

    name: str
    signature: str
    sentence: str
    decorators: tuple[str, ...]
    names: frozenset[str]

    def lines(self) -> Iterator[str]:
        """Its code, at the left margin; what is still to be written says so by its name."""
        for decorator in self.decorators:
            yield f"@{decorator}"
        yield from self.signature.splitlines()
        one = f'    """{self.sentence}"""'
        if len(one) <= _ROOM:
            yield one
        else:
            text, width = one.removesuffix('"""').lstrip(), _ROOM - len('"""')
            yield from textwrap.wrap(text, width, initial_indent=_IN, subsequent_indent=_IN)
            yield f'{_IN}"""'
        if self.name == "__init__":
            yield "    self.geometry = geometry  # build your engine with it here"
        else:
            yield f'    raise NotImplementedError("{self.name}")'


def _method(node: ast.FunctionDef, name: str = "") -> _Method:
    """The method of a protocol, under another name if one is given."""
    text = ast.unparse(node.args).replace("=", " = ")  # every argument has an annotation
    returns = "None" if name == "__init__" else ast.unparse(node.returns or ast.Constant(None))
    if name == "__init__":
        text = text.replace("/, ", "").removesuffix(", /")
    name = name or node.name
    signature = f"def {name}({text}) -> {returns}:"
    if len(signature) > _ROOM:
        signature = f"def {name}(\n    {text}\n) -> {returns}:"
    return _Method(
        name,
        signature,
        # The first line, which is a sentence.
        (ast.get_docstring(node) or "").partition("\n")[0],
        tuple(ast.unparse(decorator) for decorator in node.decorator_list),
        frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name)),
    )


@frozen
class _Section:
    """What the interface says of one capability: a sentence and the methods of its protocol."""

    text: str
    methods: tuple[_Method, ...]


@cache
def sections() -> Mapping[str, _Section]:
    """The capabilities that have a protocol in the interface, each with its methods.

    >>> [method.name for method in sections()["sharing"].methods]
    ['fork']
    """
    found = {}
    for node in ast.parse(inspect.getsource(interface)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        doc = ast.get_docstring(node) or ""
        named = _CAPABILITY.match(" ".join(doc.split("\n\n")[0].split()))
        if not (named or node.name == "CoreAllocator"):
            continue
        capability, text = named.groups() if named else ("core", doc.partition("\n")[0])
        rest = [" ".join(part.split()) for part in doc.split("\n\n")[1:]]
        methods = tuple(
            # A factory is usually a class: what it takes is taken by `__init__`.
            _method(part, "__init__" if part.name == "__call__" else "")
            for part in node.body
            if isinstance(part, ast.FunctionDef)
        )
        found[capability] = _Section(" ".join([text[:1].upper() + text[1:], *rest]), methods)
    return found


def _section_of(room: Room) -> _Section:
    """What stands under a capability; without a protocol, the attribute that claims it."""
    return sections().get(
        room.capability, _Section("It has no methods: an attribute claims it.", ())
    )


def _comment(text: str, hanging: str = "") -> Iterator[str]:
    width = _WIDTH - len(_IN)
    yield from textwrap.wrap(
        text, width, initial_indent="# ", subsequent_indent=f"# {hanging}", break_on_hyphens=False
    )


def _code(section: _Section, flags: tuple[str, ...]) -> Iterator[str]:
    for number, method in enumerate(section.methods):
        if number:
            yield ""
        yield from method.lines()
    for flag in flags:
        yield f"{flag} = True"


def _optional(room: Room, core: tuple[str, ...]) -> Iterator[str]:
    """One capability, as comments: what it is, what it is judged by, and its methods."""
    section = _section_of(room)
    yield f"# ---- {room.capability} ".ljust(_WIDTH - len(_IN), "-")
    yield from _comment(section.text)
    if room.needs:
        yield from _comment(f"It needs {' and '.join(room.needs)} as well.")
    for law in room.laws:
        yield from _comment(f"- {law.id}: {law.statement}", hanging="  ")
    replaced = [m.name for m in section.methods if m.name in core]
    if replaced:
        yield from _comment(f"To be written in place of {' and '.join(replaced)} above.")
    yield ""
    for line in _code(section, room.flags):
        yield f"# {line}".rstrip()


def _contract() -> Iterator[tuple[str, str]]:
    """The fields of a contract, with the source of their defaults."""
    for one in fields(Contract):
        default: Any = one.default
        if isinstance(default, Factory):  # type: ignore[arg-type]  # attrs types it as a function
            yield one.name, f"{default.factory.__name__}()"
        else:
            yield one.name, repr(default).replace("'", '"')


def _imports(names: frozenset[str]) -> Iterator[str]:
    """Where these names, of annotations and of a contract, come from."""
    for module, known in _MODULES.items():
        if here := sorted(names & known):
            if module == "kvspec":
                yield ""
            yield f"from {module} import {', '.join(here)}"


def skeleton(file: str) -> str:
    """An adapter to be written, for a file of this name: Python with every capability in it."""
    core = _section_of(ROOMS[0])
    start = _Method(
        "__init__",
        "def __init__(self, geometry: Geometry) -> None:",
        "Build an allocator with this geometry, empty.",
        (),
        frozenset({"Geometry"}),
    )
    others = [room for room in ROOMS if room.capability != "core"]
    used = frozenset({"Contract"}).union(*(m.names for m in (start, *core.methods)))
    later = frozenset(default.removesuffix("()") for _, default in _contract())
    later = later.union(*(m.names for r in others for m in _section_of(r).methods))
    errors = [kind.__name__ for kind in interface.AllocatorError.__subclasses__()]
    wrapped = textwrap.fill(", ".join(errors), _WIDTH - 6).replace("\n", "\n   ")
    shown = file if _PLAIN.fullmatch(file) else "FILE.py"  # what could end the docstring
    lines = [_HEAD.format(file=shown, errors=wrapped)]
    lines += _imports(used)
    lines += ["", "# What the comments below need:"]
    lines += [f"# {line}" for line in _imports(later - used) if line]
    lines += ["", "", "class Adapter:", '    """The engine as kvspec sees it."""', ""]
    body = ["contract = Contract(", f"{_IN}# The promise; these are the defaults: strictly paged."]
    body += [f"{_IN}# {name}={default}," for name, default in _contract()]
    body += [")", ""]
    body += [*start.lines(), "", *_code(core, ())]
    names = tuple(m.name for m in (start, *core.methods))
    for room in others:
        body += ["", *_optional(room, names)]
    lines += [f"    {line}" if line else "" for line in body]
    return "\n".join(lines) + "\n"
