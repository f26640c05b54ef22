"""Targets: from what a user names to a factory, its contract and its claim.

A target is `module:factory`, `path/to/file.py:factory`, or an entry-point name of the group
`kvspec.allocators`. Whatever stands in the way is a `TargetError` of one clear line.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

from kvspec.contract import Contract
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT, GeometryRefused, NotBuilt, build
from kvspec.geometry import Geometry
from kvspec.kernel.room import Room
from kvspec.kernel.specification import Specification
from kvspec.rooms import CAPABILITIES, ROOMS, specification

GROUP = "kvspec.allocators"


class TargetError(Exception):
    """A target that cannot be checked; the text says what, where, and what to try."""


class NotInstalled(TargetError):
    """A target whose own dependencies are not installed."""


@frozen
class Target:
    """An allocator under test: how to make one, what it promises, and what it claims."""

    name: str
    make: Callable[..., Any]
    contract: Contract
    capabilities: tuple[str, ...]

    def specification(self, geometry: Geometry | None = None) -> Specification:
        """The specification by which it is judged; in the plainest geometry, if none is given."""
        return specification(
            geometry or plain_geometry(self.contract), self.contract, self.capabilities
        )


def plain_geometry(contract: Contract) -> Geometry:
    """The geometry in which witnesses run: 4 blocks of 2 tokens, or the nearest allowed."""
    allowed = contract.geometries
    num_blocks = max(4, allowed.min_blocks)
    num_blocks = min(num_blocks, allowed.max_blocks or num_blocks)
    sizes = allowed.block_sizes or (2,)
    block_size = 2 if 2 in sizes else min(sizes)
    limit = 2 * block_size if allowed.max_tokens == "required" else None
    return Geometry(num_blocks, block_size, max_tokens=limit)


def registered() -> dict[str, str]:
    """The registered allocators: entry-point names and what they name, in order of name."""
    points = entry_points(group=GROUP)
    return {point.name: point.value for point in sorted(points, key=lambda p: p.name)}


def load(text: str) -> Callable[..., Any]:
    """The factory that `text` names."""
    place, colon, attribute = text.rpartition(":")
    if not colon:
        names = registered()
        if text not in names:
            known = ", ".join(names) or "none"
            raise TargetError(
                f"{text}: no allocator is registered under this name (there are: {known}); "
                "name one as module:factory or path/to/file.py:factory"
            )
        return load(names[text])
    module = _from_file(Path(place), text) if place.endswith(".py") else _from_module(place, text)
    factory: Any = module
    for part in attribute.split("."):
        if not hasattr(factory, part):
            close = _closest(attribute, vars(module), 0.6)
            hint = f"; did you mean {close}?" if close else ""
            raise TargetError(f"{text}: {place} has no {attribute}{hint}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise TargetError(f"{text}: {attribute} is {type(factory).__name__}, not a factory")
    return factory  # type: ignore[no-any-return]  # callable was just asked


def _from_module(name: str, text: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(f"{text}: there is no module {error.name}") from None
        raise NotInstalled(f"{text}: it needs {error.name}, which is not installed") from None
    except BaseException as error:
        raise _not_imported(error, text) from None


def _from_file(path: Path, text: str) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{text}: there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that the file may import its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{text}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise NotInstalled(f"{text}: it needs {error.name}, which is not installed") from None
    except BaseException as error:
        raise _not_imported(error, text) from None
    return module


def _not_imported(error: BaseException, text: str) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    reason = str(error).split("\n")[0]
    return TargetError(f"{text}: it cannot be imported: {type(error).__name__}: {reason}")


def target(
    make: Callable[..., Any],
    name: str | None = None,
    contract: Contract | None = None,
    timeout: float = DEFAULT_CALL_TIMEOUT,
) -> Target:
    """The target that `make` is: its contract, what it claims, and whether it can be built.

    The claim is the contract's, if it has one, else what the methods of the type show. Raises
    `TargetError` for a factory that makes nothing, or a capability that is there in part.
    """
    name = name or str(getattr(make, "__qualname__", type(make).__name__))
    contract = contract or promised(make, name)
    made = _probe(make, name, contract, timeout)
    kind = type(made)
    claimed = contract.capabilities or _detected(kind, name)
    unknown = sorted(set(claimed) - set(CAPABILITIES))
    if unknown:
        raise TargetError(
            f"{name}: its contract claims {', '.join(unknown)}; "
            f"the capabilities are {', '.join(CAPABILITIES)}"
        )
    capabilities = tuple(c for c in CAPABILITIES if c == "core" or c in claimed)
    for room in ROOMS:
        if room.capability in capabilities:
            _require(kind, made, room, name)
    return Target(name, make, contract, capabilities)


def promised(make: Callable[..., Any], name: str) -> Contract:
    """The contract that the factory carries as its attribute, else the strict one."""
    contract = getattr(make, "contract", None)
    if contract is None:
        return Contract()
    if not isinstance(contract, Contract):
        raise TargetError(
            f"{name}: its attribute contract is {type(contract).__name__}, not a Contract"
        )
    return contract


def _probe(make: Callable[..., Any], name: str, contract: Contract, timeout: float) -> Any:
    """One allocator, for a look at its type."""
    spec = specification(plain_geometry(contract), contract, ("core",))
    try:
        return build(make, spec, timeout)
    except GeometryRefused as refused:
        raise TargetError(
            f"{name}: {refused}; say in its contract (geometries) what it can be built with"
        ) from None
    except NotBuilt as error:
        raise TargetError(f"{name}: {error}") from None


def _missing(kind: type, room: Room) -> list[str]:
    absent = [method for method in room.methods if not callable(getattr(kind, method, None))]
    for method, keyword in room.keywords.items():
        if not _takes(getattr(kind, method, None), keyword):
            absent.append(f"{method}(..., {keyword}=)")
    return absent


def _takes(method: Any, keyword: str) -> bool:
    try:
        return keyword in inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False


def _detected(kind: type, name: str) -> tuple[str, ...]:
    """The capabilities whose complete method sets the type has; a part of one is an error."""
    claimed = []
    for room in ROOMS:
        absent = _missing(kind, room)
        if not absent:
            claimed.append(room.capability)
            continue
        public = [n for n in dir(kind) if not n.startswith("_") and callable(getattr(kind, n))]
        others = [n for n in public if not any(n in r.methods for r in ROOMS)]
        for method in room.methods:
            close = _closest(method, others, 0.75 if len(method) <= 4 else 0.85)
            if method in absent and close:
                raise TargetError(
                    f"{name}: it has {close} and lacks {method}, of the capability "
                    f"{room.capability}; rename it, or list the capabilities in its contract"
                )
        if room.capability == "core" or len(absent) < len(room.methods):
            raise TargetError(
                f"{name}: it lacks {', '.join(absent)}, of the capability {room.capability}; "
                "implement it"
                + (
                    ""
                    if room.capability == "core"
                    else ", or list the capabilities in its contract without it"
                )
            )
    return tuple(claimed)


def _require(kind: type, made: object, room: Room, name: str) -> None:
    absent = _missing(kind, room) + [a for a in room.attributes if not hasattr(made, a)]
    if absent:
        raise TargetError(
            f"{name}: it claims {room.capability} and lacks {', '.join(absent)}; implement it, "
            "or take the capability out of its contract"
        )


def _closest(name: str, others: Iterable[str], least: float) -> str | None:
    """The one of `others` that is most like `name`, from its first letter on."""
    ratios = [
        (SequenceMatcher(None, name, other).ratio(), other)
        for other in others
        if other[:1].lower() == name[:1] and other != name
    ]
    best = max(ratios, default=(0.0, ""))
    return best[1] if best[0] >= least else None
