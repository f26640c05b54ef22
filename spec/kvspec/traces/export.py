"""A trace as a stand-alone pytest file, which needs only the allocator and kvspec."""

import re

from attrs import fields

from kvspec.traces.table import as_text, called, shown
from kvspec.traces.trace import Trace, TraceStep

_TARGET = re.compile(r"[\w./\\ -]+(:[\w.]+)?")


def as_pytest(trace: Trace, allocator: str | None = None) -> str:
    """Python source of one test, which fails as long as the trace's law is broken.

    `allocator` is the target to be tested, by default the one that the trace names; either is
    only written into the file, and nothing is imported here. Raises `ValueError` for a text
    that is no target, since it will be run.
    """
    target = allocator or trace.allocator
    if not _TARGET.fullmatch(target):
        raise ValueError(
            f"{target!r} is no target; say --allocator module:factory or path/to/file.py:factory"
        )
    story = _in_docstring(as_text(trace, width=92))
    law = shown(trace.law or "trace")
    reservation = type(trace.contract.reservation).__name__
    names = sorted({"Contract", "Geometries", "Geometry", reservation})
    lines = [
        f'"""{_in_docstring(law)}: a counterexample as a test, exported by kvspec.',
        "",
        story,
        '"""',
        "",
        f"from kvspec import {', '.join(names)}",
        "from kvspec.driver.target import load",
        "from kvspec.engines.session import Session",
        "from kvspec.kernel.outcome import Look",
        "from kvspec.rooms import specification",
        "",
        f"ALLOCATOR = {target!r}",
        f"GEOMETRY = {trace.geometry!r}",
        f"CONTRACT = {trace.contract!r}",
        f"CAPABILITIES = {trace.capabilities!r}",
        "STORY = [",
        *(f"    {_line(step)}" for step in trace.steps),
        "]",
        "",
        "",
        f"def test_{re.sub(r'[^a-z0-9]', '_', law.lower())}():",
        "    spec = specification(GEOMETRY, CONTRACT, CAPABILITIES)",
        "    session = Session(load(ALLOCATOR), spec, name=ALLOCATOR)",
        "    for method, arguments, look, fault in STORY:",
        "        breaches = session.call(method, look, fault, **arguments)",
        '        assert not breaches, "; ".join(f"{b.law}: {b.because}" for b in breaches)',
    ]
    return "\n".join(lines) + "\n"


def _in_docstring(text: str) -> str:
    # What a trace says is not to be trusted with the end of a docstring.
    return text.replace("\\", "\\\\").replace('"', "'")


def _line(step: TraceStep) -> str:
    operation = step.operation
    arguments = {f.name: getattr(operation, f.name) for f in fields(type(operation))}
    call = f"({operation.method!r}, {arguments!r}, {step.look!r}, {step.fault}),"
    return f"{call}  # {called(step)}"
