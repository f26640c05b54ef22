"""Targets: from what a user names to a factory, its contract and its claim.

A target is `module:factory`, `path/to/file.py:factory`, or an entry-point name of the groups
`kvspec.allocators` and `kvspec.engines`. Whatever stands in the way is a `TargetError` of one
clear line.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

from kvspec.contract import Contract
from kvspec.driver.claims import closest, detected, require
from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.making import GeometryRefused, NotBuilt, TargetError, build, rows_of
from kvspec.driver.values import raised, shown, text_of
from kvspec.geometry import Geometry
from kvspec.kernel.law import Law
from kvspec.kernel.room import Room
from kvspec.kernel.specification import Specification
from kvspec.rooms import CAPABILITIES, LAWS, ROOMS, specification

__all__ = [
    "ENGINES",
    "GROUP",
    "NotInstalled",
    "Target",
    "TargetError",
    "load",
    "plain_geometry",
    "promised",
    "registered",
    "target",
]

GROUP = "kvspec.allocators"

ENGINES = "kvspec.engines"
"""The group of published engines' own allocators, which are checked where they are asked for."""


class NotInstalled(TargetError):
    """A target whose own dependencies are not installed."""


@frozen
class Target:
    """An allocator under test: how to make one, what it promises, and what it claims."""

    name: str
    make: Callable[..., Any]
    contract: Contract
    capabilities: tuple[str, ...]

    @property
    def rooms(self) -> tuple[Room, ...]:
        """The rooms of the capabilities that it claims."""
        return tuple(room for room in ROOMS if room.capability in self.capabilities)

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws of the capabilities that it claims, in the published order."""
        return tuple(law for law in LAWS if law.capability in self.capabilities)

    def geometry_of(self, law: Law) -> Geometry | None:
        """The plainest geometry in which there is something to judge by `law`, if there is one."""
        plain = plain_geometry(self.contract)
        room = next(room for room in self.rooms if room.capability == law.capability)
        shaped = room.shaped(plain, self.contract.geometries, None)
        return shaped if self.contract.geometries.admits(shaped) else None

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


def registered(group: str = GROUP) -> dict[str, str]:
    """The allocators of a group: entry-point names and what they name, in order of name."""
    points = entry_points(group=group)
    return {point.name: point.value for point in sorted(points, key=lambda p: p.name)}


def load(text: str) -> Callable[..., Any]:
    """The factory that `text` names."""
    place, colon, attribute = text.rpartition(":")
    if not colon:
        engines, others = registered(ENGINES), registered()
        names = {**engines, **others}
        if text not in names:
            known = ", ".join(others) or "none"
            close = closest(text, names, 0.6)
            meant = f"; {close} is near" if close else ""
            raise TargetError(
                f"{text}: no allocator is registered under this name (there are: {known}, and "
                f"{len(engines)} of published engines{meant}); "
                "name one as module:factory or path/to/file.py:factory"
            )
        return load(names[text])
    if not (place and attribute):
        raise TargetError(
            f"{text}: it names no factory; name one as module:factory or path/to/file.py:factory"
        )
    module = _from_file(Path(place), text) if place.endswith(".py") else _from_module(place, text)
    factory: Any = module
    for part in attribute.split("."):
        try:
            factory = getattr(factory, part)
        except AttributeError:
            close = closest(attribute, dir(module), 0.6)
            hint = f"; did you mean {close}?" if close else ""
            raise TargetError(f"{text}: {place} has no {attribute}{hint}") from None
        except BaseException as error:  # a module may import its parts when they are asked for
            raise _not_imported(error, text) from None
    if not callable(factory):
        raise TargetError(f"{text}: {attribute} is {shown(factory)}, not a factory")
    return factory  # type: ignore[no-any-return]  # callable was just asked


def _from_module(name: str, text: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(f"{text}: there is no module {error.name}") from None
        raise _not_imported(error, text) from None
    except BaseException as error:
        raise _not_imported(error, text) from None


def _from_file(path: Path, text: str) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{text}: there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that the file may import its neighbours
    # Dataclasses, among others, look their module up by name while it is being executed; but
    # a file called like a module that is there already must not take its place.
    name = path.stem
    if name in sys.modules:
        name = str(path.resolve()).replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{text}: {path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _not_imported(error, text) from None
    return module


def _not_imported(error: BaseException, text: str) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        return NotInstalled(f"{text}: it needs {error.name}, which is not installed")
    # In full, unlike in a trace: what to try is often at the end of the text.
    why = text_of(str, error, 400)
    return TargetError(f"{text}: it cannot be imported: {type(error).__name__}: {why}")


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
    if not callable(make):
        raise TargetError(f"{name}: it is {shown(make)}, not a factory")
    contract = contract or promised(make, name)
    made = _probe(make, name, contract, timeout)
    claimed = contract.capabilities
    if claimed is None:
        claimed = detected(make, type(made), name)
    unknown = sorted(set(claimed) - set(CAPABILITIES))
    if unknown:
        raise TargetError(
            f"{name}: its contract claims {', '.join(unknown)}; "
            f"the capabilities are {', '.join(CAPABILITIES)}"
        )
    capabilities = tuple(c for c in CAPABILITIES if c == "core" or c in claimed)
    for room in ROOMS:
        if room.capability in capabilities:
            require(make, made, room, name, timeout)
            lacks = [need for need in room.needs if need not in capabilities]
            if lacks:
                raise TargetError(
                    f"{name}: it claims {room.capability}, which needs {' and '.join(lacks)} as "
                    "well; implement that, or list the capabilities in its contract"
                )
    tested = Target(name, make, contract, capabilities)
    try:
        tested.specification()
    except ValueError as error:  # a claim and a contract that together mean nothing
        raise TargetError(f"{name}: {error}") from None
    if "store" in capabilities:
        try:
            rows_of(made, tested.specification(), timeout)
        except NotBuilt as error:
            raise TargetError(f"{name}: {error}") from None
    return tested


def promised(make: Callable[..., Any], name: str) -> Contract:
    """The contract that the factory carries as its attribute, else the strict one."""
    try:
        contract = getattr(make, "contract", None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TargetError(f"{name}: its attribute contract: {raised(error)}") from None
    if contract is None:
        return Contract()
    if not isinstance(contract, Contract):
        raise TargetError(f"{name}: its attribute contract is {shown(contract)}, not a Contract")
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
