"""The trace: one run as versioned JSON.

A trace names the allocator for the reader only: loading one never imports or runs anything.
It holds what was done and looked at (operations and looks), what came of it (outcomes), and
which laws the last step broke.
"""

import json
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from cattrs import Converter
from cattrs.errors import BaseValidationError
from cattrs.strategies import configure_tagged_union

from kvspec.contract import Contract, Reservation
from kvspec.geometry import Geometry
from kvspec.interface import Copy
from kvspec.kernel.law import Breach
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import FULL, Look, Outcome
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell
from kvspec.rooms import OPERATIONS, specification

FORMAT = 1
"""The version of the format; a reader refuses a later one."""


class TraceError(ValueError):
    """A file that is no trace; the text says what is wrong with it."""


@frozen
class TraceStep:
    """One operation, what was looked at after it, and what came of it.

    `wrong` says that the call was meant to be wrong, so that one which only becomes wrong
    when others are dropped is known for what it is.
    """

    operation: Operation
    look: Look = FULL
    wrong: bool = False
    outcome: Outcome | None = None


@frozen
class Trace:
    """One run of one allocator, from a fresh one to the last step."""

    allocator: str
    geometry: Geometry
    contract: Contract
    capabilities: tuple[str, ...]
    steps: tuple[TraceStep, ...]
    breaches: tuple[Breach, ...] = ()
    reduced: bool = False
    format: int = FORMAT
    suite: str = field(default="kvspec")

    @property
    def specification(self) -> Specification:
        """The specification that the run is judged by."""
        return specification(self.geometry, self.contract, self.capabilities)

    @property
    def law(self) -> str | None:
        """The law that is reported: the first broken one in the published order."""
        return self.breaches[0].law if self.breaches else None


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    configure_tagged_union(Reservation, converter, tag_generator=lambda kind: kind.__name__)

    def operation_out(operation: Operation) -> dict[str, Any]:
        return {"call": operation.method, **attrs.asdict(operation)}

    def operation_in(data: Any, _: object) -> Operation:
        fields = dict(data)
        kind = OPERATIONS.get(fields.pop("call", ""))
        if kind is None:
            raise TraceError(f"it has a call that no operation is: {data}")
        return kind(**fields)

    converter.register_unstructure_hook_func(
        lambda kind: isinstance(kind, type) and issubclass(kind, Operation), operation_out
    )
    converter.register_structure_hook(Operation, operation_in)
    converter.register_unstructure_hook(Cell, list)
    converter.register_structure_hook(Cell, lambda data, _: Cell(*data))
    converter.register_unstructure_hook(Copy, list)
    converter.register_structure_hook(Copy, lambda data, _: Copy(*data))
    return converter


CONVERTER = _converter()


def to_json(trace: Trace) -> str:
    """The trace as JSON text; the same trace always gives the same text."""
    return json.dumps(CONVERTER.unstructure(trace), indent=1) + "\n"


def from_json(text: str) -> Trace:
    """The trace that `text` holds; `TraceError` where it holds none."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise TraceError(f"it is not JSON, or was cut off: {error}") from None
    if not isinstance(data, dict) or "format" not in data:
        raise TraceError("it is JSON, but no trace: it has no format")
    if data["format"] != FORMAT:
        raise TraceError(
            f"it has format {data['format']}, and this version reads format {FORMAT}; "
            "a later kvspec may read it"
        )
    try:
        trace = CONVERTER.structure(data, Trace)
        trace.specification  # noqa: B018  # raises for what no specification covers
    except BaseValidationError as error:
        raise TraceError(f"it is no whole trace: {_first_reason(error)}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TraceError(f"it is no whole trace: {error}") from None
    return trace


def _first_reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{error}" + (f" ({notes})" if notes else "")


def save(trace: Trace, path: Path) -> None:
    """Write the trace to `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(to_json(trace), encoding="utf-8")
    part.replace(path)


def load(path: Path) -> Trace:
    """The trace in the file; `TraceError`, naming the file, where there is none."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: it cannot be read: {error}") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
