"""Making the allocator under test, and what stands in the way."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kvspec.driver.store import HeadRows, Rows
from kvspec.driver.values import Nonsense, raised
from kvspec.driver.watchdog import TimeUp, within
from kvspec.kernel.specification import Specification
from kvspec.rooms import attention

Checkpoint = Callable[[str], None]


class TargetError(Exception):
    """A target that cannot be checked; the text says what, where, and what to try."""


class NotBuilt(TargetError):
    """The factory did not make an allocator; the text says why."""


class GeometryRefused(NotBuilt):
    """The factory raised `UnsupportedGeometry`."""


def mro_names(error: BaseException) -> list[str]:
    """The names of the classes of an error, by which the interface knows it."""
    return [kind.__name__ for kind in type(error).__mro__]


def build(
    make: Callable[..., Any],
    spec: Specification,
    timeout: float,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """A fresh allocator from the factory, or `NotBuilt`."""
    try:
        return within(timeout, partial(_build, make, spec, checkpoint))
    except TimeUp:
        raise NotBuilt(f"the factory did not come back for {spec.geometry}") from None


def _build(make: Callable[..., Any], spec: Specification, checkpoint: Checkpoint | None) -> Any:
    try:
        if checkpoint is None:
            made = make(spec.geometry)
        else:
            made = make(spec.geometry, checkpoint=checkpoint)
    except (TimeUp, KeyboardInterrupt):
        raise
    except BaseException as error:
        if "UnsupportedGeometry" in mro_names(error):
            raise GeometryRefused(f"{spec.geometry} is refused: {raised(error)}") from None
        raise NotBuilt(f"the factory raised {raised(error)} for {spec.geometry}") from error
    if made is None:
        raise NotBuilt(f"the factory returned None for {spec.geometry}")
    return made


def rows_of(allocator: Any, spec: Specification, timeout: float) -> Rows:
    """The rows that fit the store which `allocator` is, or `NotBuilt`."""

    attends = any(room is attention.ROOM for room in spec.rooms)
    named = "its attributes width and dtype"
    named += f", {', '.join(attention.ROOM.attributes)}" if attends else ""

    def attributes() -> Rows:
        width, dtype, slots = allocator.width, allocator.dtype, spec.most_tokens
        if attends:
            return HeadRows(width, dtype, slots, allocator, spec.geometry)
        return Rows(width, dtype, slots)

    def checked() -> Rows:
        try:
            return attributes()
        except (TimeUp, KeyboardInterrupt):
            raise
        except Nonsense as nonsense:
            raise NotBuilt(str(nonsense)) from None
        except BaseException as error:
            raise NotBuilt(f"{named}: {raised(error)}") from error

    try:
        return within(timeout, checked)
    except TimeUp:
        raise NotBuilt(f"{named} did not come back") from None
