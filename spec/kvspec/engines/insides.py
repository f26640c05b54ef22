"""What an object has inside: its attributes and its elements, whatever its type shows of them.

A type may answer for its objects in its own way, by a property, by `__iter__` or by `items`; what
decides how they go on is what is there. So it is taken, and put into a copy, by what Python itself
keeps it with: the descriptors of slots and dictionaries, and the methods of the built-in bases.
"""

from collections import OrderedDict, defaultdict, deque
from functools import cache
from pickle import PicklingError
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

_CONTAINERS: tuple[type, ...] = (OrderedDict, defaultdict, dict, list, deque, set, frozenset)
"""What has elements that a type of its own may show in its own way; the most special ones first."""

Attributes = tuple[dict[str, Any], list[tuple[type, str, Any]]]
"""What is in the dictionary of an object, and in its slots: by the type that has them, and name."""


@cache
def _slots(kind: type) -> tuple[tuple[type, str, Any], ...]:
    """The slots of the objects of a type: the type that has each, its name, its descriptor."""
    found: list[tuple[type, str, Any]] = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            mine = base.__name__.lstrip("_")
            name = f"_{mine}{name}" if private and mine else name
            member = vars(base).get(name)
            if isinstance(member, MemberDescriptorType):
                found.append((base, name, member))
    return tuple(found)


def may_have_attributes(kind: type) -> bool:
    """Whether there may be any in the objects of a type."""
    return bool(kind.__dictoffset__ or _slots(kind))


def shows_otherwise(kind: type) -> bool:
    """Whether a type has its own way to show the attributes of its objects."""
    if isinstance(kind.__getattribute__, FunctionType):
        return True
    own = (vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base))
    if not all(isinstance(one, GetSetDescriptorType) for one in own):
        return True
    return any(_found(kind, name) is not member for _, name, member in _slots(kind))


def _found(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def attributes(thing: Any, kind: type) -> Attributes:
    """All that an object of this type has; `PicklingError` where it hides its dictionary."""
    slots = []
    for base, name, member in _slots(kind):
        try:
            slots.append((base, name, member.__get__(thing)))
        except AttributeError:  # nothing was put there
            continue
    return dict(_dictionary(thing, kind)), slots


def _dictionary(thing: Any, kind: type) -> dict[str, Any]:
    for base in kind.__mro__:
        own = vars(base).get("__dict__")
        if isinstance(own, GetSetDescriptorType):
            found: dict[str, Any] = own.__get__(thing)
            return found
    if kind.__dictoffset__:
        raise PicklingError(f"{kind.__qualname__} hides its dictionary")
    return {}


def fill(thing: Any, inside: Attributes) -> None:
    """Put attributes into a new object."""
    own, slots = inside
    if own:
        _dictionary(thing, type(thing)).update(own)
    for base, name, value in slots:
        vars(base)[name].__set__(thing, value)


# ------------------------------------------------------------------------------ elements


def container(kind: type) -> type | None:
    """The built-in type whose elements the objects of a type have, if it is over one."""
    if issubclass(kind, tuple) and kind.__iter__ is not tuple.__iter__:
        return tuple
    return next((base for base in _CONTAINERS if issubclass(kind, base)), None)


def made_again(thing: Any, kind: type, base: Any) -> tuple[Any, ...]:
    """How an object with the elements of `base` is made again, as a pickler is told it."""
    inside = attributes(thing, kind)
    if base in (tuple, frozenset):
        return base.__new__, (kind, list(base.__iter__(thing))), inside, None, None, fill
    elements = list(base.items(thing) if issubclass(base, dict) else base.__iter__(thing))
    # What the base has besides, in its own memory.
    more = {deque: "maxlen", defaultdict: "default_factory"}.get(base)
    besides = None if more is None else vars(base)[more].__get__(thing)
    return _empty, (kind, base), (inside, elements, besides), None, None, _refill


def _empty(kind: type, base: Any) -> Any:
    return base.__new__(kind)


def _refill(thing: Any, inside: tuple[Attributes, list[Any], Any]) -> None:
    own, elements, besides = inside
    if isinstance(thing, deque):
        deque.__init__(thing, elements, besides)
    elif isinstance(thing, list):
        list.extend(thing, elements)
    elif isinstance(thing, set):
        set.update(thing, elements)
    else:
        if isinstance(thing, defaultdict):
            defaultdict.__init__(thing, besides)
        base: Any = OrderedDict if isinstance(thing, OrderedDict) else dict
        for key, value in elements:
            base.__setitem__(thing, key, value)
    fill(thing, own)
