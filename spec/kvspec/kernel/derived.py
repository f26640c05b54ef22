"""Derived facts: computed when they are first asked for, and then kept."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

S = TypeVar("S")
T = TypeVar("T")


class derived(Generic[S, T]):
    """A property of a frozen value, which is computed once.

    As `functools.cached_property`, which takes a lock at every first look: that costs more than
    most of what is derived here, and two threads that derive the same come to the same.
    """

    def __init__(self, compute: Callable[[S], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: Any) -> "derived[S, T]": ...

    @overload
    def __get__(self, instance: S, owner: Any) -> T: ...

    def __get__(self, instance: S | None, owner: Any) -> "derived[S, T] | T":
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
