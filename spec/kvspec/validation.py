"""Validators of fields: a `ValueError` that names the field, what it must be, and what it is."""

from collections.abc import Callable
from typing import Any, get_args

from attrs import Attribute

Validator = Callable[[object, "Attribute[Any]", Any], None]


def at_least(low: int) -> Validator:
    """An int (not a bool) of at least `low`."""

    def check(instance: object, attribute: "Attribute[Any]", value: Any) -> None:
        if type(value) is not int:
            raise ValueError(f"{attribute.name} must be a whole number, not {value!r}")
        if value < low:
            raise ValueError(f"{attribute.name} must be at least {low}, not {value}")

    return check


def one_of(kind: Any) -> Validator:
    """One of the words of a `Literal`."""
    words = get_args(kind)

    def check(instance: object, attribute: "Attribute[Any]", value: Any) -> None:
        if value not in words:
            raise ValueError(f"{attribute.name} must be one of {', '.join(words)}, not {value!r}")

    return check


def of(*kinds: type) -> Validator:
    """A value of one of `kinds`."""

    def check(instance: object, attribute: "Attribute[Any]", value: Any) -> None:
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{attribute.name} must be {names}, not {value!r}")

    return check


def as_tuple(value: Any) -> Any:
    """A converter: lists, as JSON has them, become tuples."""
    return tuple(value) if isinstance(value, list) else value


def each(check: Validator, least: int = 0) -> Validator:
    """A tuple of at least so many items, each of which passes `check`."""

    def check_all(instance: object, attribute: "Attribute[Any]", value: Any) -> None:
        if not isinstance(value, tuple) or len(value) < least:
            size = f"a tuple of at least {least}" if least else "a tuple"
            raise ValueError(f"{attribute.name} must be {size}, not {value!r}")
        for item in value:
            check(instance, attribute, item)

    return check_all
