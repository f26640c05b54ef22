"""Changes that can be taken back.

A call may fail when half of it is done: the last of three blocks is not there, the second pool
is empty, a copy does not succeed. So whatever a call changes, it changes through the journal,
which notes the inverse; a call that raises has its notes carried out, last in, first out.
"""

from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")


class Journal:
    """The inverses of what the call in progress has changed.

    >>> journal, blocks = Journal(), [1, 2]
    >>> journal.append(blocks, 3), journal.remove(blocks, 1), blocks
    (None, None, [2, 3])
    >>> journal.undo(), blocks
    (None, [1, 2])
    """

    def __init__(self) -> None:
        self._inverses: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def note(self, inverse: Callable[..., object], *arguments: Any) -> None:
        """Something has been changed, and this changes it back."""
        self._inverses.append((inverse, arguments))

    def forget(self) -> None:
        """What has been done stays done."""
        self._inverses.clear()

    def undo(self) -> None:
        """Take everything back, the last change first."""
        while self._inverses:
            inverse, arguments = self._inverses.pop()
            inverse(*arguments)

    def set(self, owner: object, name: str, value: object) -> None:
        """Set an attribute."""
        self._inverses.append((setattr, (owner, name, getattr(owner, name))))
        setattr(owner, name, value)

    def put(self, mapping: MutableMapping[K, T], key: K, value: T) -> None:
        """Set what `key` is mapped to."""
        if key in mapping:
            self.note(mapping.__setitem__, key, mapping[key])
        else:
            self.note(mapping.__delitem__, key)
        mapping[key] = value

    def delete(self, mapping: MutableMapping[K, T], key: K) -> None:
        """Take `key` out of a mapping."""
        self.note(mapping.__setitem__, key, mapping.pop(key))

    def replace(self, items: list[T], index: int, item: T) -> None:
        """Set the item at `index`."""
        self.note(items.__setitem__, index, items[index])
        items[index] = item

    def append(self, items: list[T], item: T) -> None:
        """Put an item at the end."""
        self.note(_remove_last, items, item)
        items.append(item)

    def remove(self, items: list[T], item: T) -> None:
        """Take the first such item out."""
        index = items.index(item)
        self.note(items.insert, index, item)
        del items[index]


def _remove_last(items: list[T], item: T) -> None:
    """Take the last such item out: others may have been put behind it, and not by the journal."""
    index = next(i for i in reversed(range(len(items))) if items[i] == item)
    del items[index]


class Journaled(Protocol):
    """Whatever keeps a journal."""

    _journal: Journal


S = TypeVar("S", bound=Journaled)


def all_or_nothing(
    mutator: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """A method that leaves everything as it was if it raises anything at all."""

    @wraps(mutator)
    def attempt(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        journal = self._journal
        journal.forget()
        try:
            answer = mutator(self, *args, **kwargs)
        except BaseException:
            journal.undo()
            raise
        journal.forget()
        return answer

    return attempt
