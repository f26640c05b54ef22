"""The trace: one run as versioned JSON.

A trace names the allocator for the reader only: loading one never imports or runs anything.
It holds what was done and looked at (operations and looks), what came of it (outcomes), and
which laws the last step broke.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import attrs
from attrs import field, frozen
from cattrs import Converter, transform_error
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.strategies import configure_tagged_union

from kvspec.contract import Contract, Reservation
from kvspec.geometry import DEVICE, HOST, Geometry, Place
from kvspec.interface import Copy
from kvspec.kernel.generation import LAST_ID
from kvspec.kernel.law import Breach
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import FULL, Asked, Look, Outcome
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Cell, TableOf, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import OPERATIONS, specification
from kvspec.rooms.resize import MOST_TIMES, Resize

FORMAT = 2
"""The version of the format; a reader refuses a later one."""

MOST_TOKENS = 2**20
"""A trace of a pool that holds more is not read: following it would take all memory."""


class TraceError(ValueError):
    """A file that is no trace; the text says what is wrong with it."""


@frozen(slots=False)
class TraceStep:
    """One operation, what was looked at after it, and what came of it.

    `wrong` says that the call was meant to be wrong, so that one which only becomes wrong
    when others are dropped is known for what it is. `fault` is the number of the checkpoint at
    which the call was made to fail; 0 where none was.
    """

    operation: Operation
    look: Look = FULL
    wrong: bool = False
    outcome: Outcome | None = None
    fault: int = 0


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


# ------------------------------------------------------------------------------ JSON to values

# A value of another type is an error and never converted: `int` would take 1.5 for 1, and
# `bool` would take "false" for true.


def _exact(kind: type, what: str) -> Any:
    def structure(data: Any, _: object) -> Any:
        if type(data) is not kind:
            raise ValueError(f"{_short(data)} is not {what}")
        return data

    return structure


def _short(data: Any) -> str:
    text = json.dumps(data, default=repr)
    return text if len(text) <= 40 else text[:37] + "..."


def _operation_out(operation: Operation) -> dict[str, Any]:
    return {"call": operation.method, **attrs.asdict(operation)}


def _operation_in(data: Any, _: object) -> Operation:
    fields = _object(data)
    method = fields.pop("call", None)
    kind = OPERATIONS.get(method) if isinstance(method, str) else None
    if kind is None:
        raise ValueError(f"{_short(method)} is no call of the interface")
    known = {f.name: f.type for f in attrs.fields(kind)}
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{method} has no argument {name!r}")
        if known[name] is int and (type(value) is not int or abs(value) > LAST_ID):
            raise ValueError(f"{name} of {method} is {_short(value)}")
        fields[name] = _value_in(value, f"{name} of {method}")
    absent = [f.name for f in attrs.fields(kind) if f.default is attrs.NOTHING]
    absent = [name for name in absent if name not in fields]
    if absent:
        raise ValueError(f"{method} lacks {', '.join(absent)}")
    return kind(**fields)


def _value_in(value: Any, what: str) -> Any:
    """An argument: a scalar, or a tuple of them, of which JSON makes a list."""
    if isinstance(value, dict):
        raise ValueError(f"{what} is {_short(value)}")
    return tuple(_value_in(v, what) for v in value) if isinstance(value, list) else value


_TABLE = re.compile(r"(\d{1,10})(?:/(\d{1,3}))?(@host)?")


def _table_in(data: Any, _: object) -> TableOf:
    match = _TABLE.fullmatch(data) if isinstance(data, str) else None
    if match is None:
        raise ValueError(f"{_short(data)} names no table")
    seq, group, host = match.groups()
    return table_of(int(seq), int(group or 0), HOST if host else DEVICE)


_PLACE = re.compile(r"(device|host)(?: pool (\d{1,3}))?")


def _place_in(data: Any, _: object) -> Place:
    match = _PLACE.fullmatch(data) if isinstance(data, str) else None
    if match is None:
        raise ValueError(f"{_short(data)} names no place")
    return Place(match[1], int(match[2] or 0))


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{_short(data)} is not an object")
    return dict(data)


def _list(data: Any, length: int | None = None) -> list[Any]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{_short(data)} is not a list")
    if length is not None and len(data) != length:
        raise ValueError(f"{_short(data)} has not {length} entries")
    return list(data)


def _numbers(data: Any, length: int) -> list[int]:
    numbers = _list(data, length)
    if any(type(number) is not int for number in numbers):
        raise ValueError(f"{_short(data)} is not a list of whole numbers")
    return numbers


def _cell_in(data: Any, _: object) -> Cell:
    *places, token = _list(data, 4)
    if token is not None and type(token) is not int:
        raise ValueError(f"{_short(token)} is not a token")
    position, writer, operation = _numbers(places, 3)
    return Cell(position, writer, operation, token)


def _literal_in(data: Any, kind: Any) -> Any:
    names = get_args(kind)
    if data not in names:
        raise ValueError(f"{_short(data)} is not {' or '.join(map(str, names))}")
    return data


def _by_text(kind: Any) -> bool:
    return _generic(Mapping)(kind) and get_args(kind)[0] in (TableOf, Place)


def _by_number(kind: Any) -> bool:
    return _generic(Mapping)(kind) and get_args(kind)[0] is int


def _generic(wanted: Any) -> Callable[[Any], bool]:
    return lambda kind: bool(get_origin(kind) is wanted)


_NO_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""JSON has no word for these, and an output may be any."""


def _float_out(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _float_in(data: Any, _: object) -> float:
    if type(data) is str and data in _NO_NUMBERS:
        return _NO_NUMBERS[data]
    if type(data) is not float:
        raise ValueError(f"{_short(data)} is not a number with a point")
    return data


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, _exact(int, "a whole number"))
    converter.register_structure_hook(bool, _exact(bool, "true or false"))
    converter.register_structure_hook(str, _exact(str, "a text"))

    converter.register_structure_hook(float, _float_in)
    converter.register_unstructure_hook(float, _float_out)

    def mapping_in(data: Any, kind: Any) -> Any:
        # JSON has only texts as keys.
        value = get_args(kind)[1]
        return {int(key): converter.structure(v, value) for key, v in _object(data).items()}

    def places_in(data: Any, kind: Any) -> Any:
        name, value = get_args(kind)
        return {
            converter.structure(key, name): converter.structure(v, value)
            for key, v in _object(data).items()
        }

    def tuple_in(data: Any, kind: Any) -> Any:
        item, parts = get_args(kind)[0], []
        for index, part in enumerate(_list(data)):
            try:
                parts.append(converter.structure(part, item))
            except Exception as error:
                raise ValueError(f"entry {index}: {reason(error)}") from None
        return tuple(parts)

    converter.register_structure_hook_func(_by_number, mapping_in)
    converter.register_structure_hook_func(_by_text, places_in)
    converter.register_unstructure_hook_func(
        _by_text, lambda data: {str(k): converter.unstructure(v) for k, v in data.items()}
    )
    converter.register_structure_hook(TableOf, _table_in)
    converter.register_unstructure_hook(TableOf, str)
    converter.register_structure_hook(Place, _place_in)
    converter.register_unstructure_hook(Place, str)
    converter.register_structure_hook_func(_generic(tuple), tuple_in)
    converter.register_structure_hook_func(_generic(Literal), _literal_in)
    configure_tagged_union(Reservation, converter, tag_generator=lambda kind: kind.__name__)
    converter.register_unstructure_hook_func(
        lambda kind: isinstance(kind, type) and issubclass(kind, Operation), _operation_out
    )
    converter.register_structure_hook(Operation, _operation_in)
    converter.register_unstructure_hook(Cell, list)
    converter.register_structure_hook(Cell, _cell_in)
    converter.register_unstructure_hook(Copy, list)
    converter.register_structure_hook(Copy, lambda data, _: Copy(*_numbers(data, 2)))
    return converter


# The two modules know each other, so that cattrs would not find the name.
attrs.resolve_types(Asked, localns={"Operation": Operation})

CONVERTER = _converter()


def reason(error: Exception) -> str:
    """Why data could not be structured: one line, with the place of the first thing wrong."""
    what, _, place = transform_error(error, path="", format_exception=_said)[0].rpartition(" @ ")
    place = place.removeprefix(".")
    return f"{place}: {what}" if place else what


def _said(error: BaseException, kind: type | None) -> str:
    match error:
        case ForbiddenExtraKeysError():
            return f"there is no {' and no '.join(sorted(map(repr, error.extra_fields)))}"
        case KeyError():
            return "it is missing"
        case TypeError() | AttributeError():
            return "a value of a wrong type"
    return str(error)


# ------------------------------------------------------------------------------ texts and files


def to_json(trace: Trace) -> str:
    """The trace as JSON text; the same trace always gives the same text."""
    return json.dumps(CONVERTER.unstructure(trace), indent=1) + "\n"


def parse_json(text: str) -> Any:
    """The data that `text` holds; `ValueError`, saying what is wrong, where it is no JSON."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
        json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeEncodeError:
        raise ValueError("it has text that is not Unicode") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON, or was cut off: {error}") from None
    return data


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not in JSON")


def from_json(text: str) -> Trace:
    """The trace that `text` holds; `TraceError` where it holds none."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise TraceError(str(error)) from None
    if not isinstance(data, dict) or "format" not in data:
        raise TraceError("it is JSON, but no trace: it has no format")
    if data["format"] != FORMAT or type(data["format"]) is not int:
        raise TraceError(
            f"it has format {_short(data['format'])}, and this version reads format {FORMAT}; "
            "a later kvspec may read it"
        )
    try:
        trace = CONVERTER.structure(data, Trace)
        spec = trace.specification  # raises for what no specification covers
        methods = {kind.method for room in spec.rooms for kind in room.operations}
        foreign = {step.operation.method for step in trace.steps} - methods
        if foreign:
            raise ValueError(f"{min(foreign)} is a call of a capability that is not claimed")
        if _tokens(trace.geometry) > MOST_TOKENS:
            raise ValueError(f"its pool holds more than {MOST_TOKENS} tokens")
        sizes = [s.operation.num_blocks for s in trace.steps if isinstance(s.operation, Resize)]
        most = MOST_TIMES * trace.geometry.num_blocks
        if any(type(size) is int and size > most for size in sizes):
            raise ValueError(f"it makes the pool larger than {most} blocks")
    except Exception as error:  # whatever cattrs or a validator says of it
        raise TraceError(f"it is no whole trace: {reason(error)}") from None
    return trace


def _tokens(geometry: Geometry) -> int:
    """No fewer tokens than all the pools hold together."""
    largest = max(group.block_size for group in geometry.layout)
    return (sum(geometry.pools) + geometry.num_host_blocks) * largest


def believed(trace: Trace) -> list[Step]:
    """The steps of the trace, believed anew from the recorded outcomes, as far as there are any."""
    spec = trace.specification
    state, steps = spec.initial(), []
    for recorded in trace.steps:
        if recorded.outcome is None:
            break
        steps.append(spec.believe(state, recorded.operation, recorded.outcome))
        state = steps[-1].after
    return steps


def file_name(trace: Trace) -> str:
    """A name for the trace's file, of the allocator and the law: letters, digits and dashes."""
    words = f"{trace.allocator} {trace.law or 'trace'}"
    name = "".join(c if c.isalnum() and c.isascii() else " " for c in words)
    return "-".join(name.split())[-100:] + ".json"


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all; `OSError` where that cannot be done.

    A device or a pipe is written to as it is.
    """
    if (path.exists() and not path.is_file()) or path.absolute().is_relative_to("/dev"):
        with path.open("a", encoding="utf-8") as stream:  # standard output may be a file
            stream.write(text)
        return
    path = path.resolve()  # a link goes on being one
    part = path.with_name(f"{path.name[:100]}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def save(trace: Trace, path: Path) -> None:
    """Write the trace to `path`, whole or not at all; `OSError` where that cannot be done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, to_json(trace))


def load(path: Path) -> Trace:
    """The trace in the file; `TraceError`, naming the file, where there is none."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: it is not JSON: it is not text") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
