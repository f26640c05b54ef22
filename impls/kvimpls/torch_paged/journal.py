"""An undo log: what was there before each change of an operation that may yet fail.

Most operations check first and then cannot fail, and for them the log is off and costs nothing.
It is on where an operation is several that may each be refused (a batch), and where a fault may
be injected in the middle.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class Journal:
    """Runs operations that change everything or nothing.

    >>> import torch
    >>> journal, counts = Journal(), torch.zeros(3)
    >>> def failing():
    ...     journal.keep(counts, 1)
    ...     counts[1] = 5
    ...     raise ValueError("half way")
    >>> journal.run(failing)
    Traceback (most recent call last):
    ValueError: half way
    >>> counts.tolist()
    [0.0, 0.0, 0.0]
    """

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] | None = None

    @property
    def recording(self) -> bool:
        """Whether what is about to be changed has to be kept."""
        return self._undo is not None

    def keep(self, tensor: Tensor, index: Any) -> None:
        """Keep `tensor[index]`, which is about to be changed in place."""
        if self._undo is not None:
            if isinstance(index, Tensor):
                index = index.clone()  # it may be a view of something that changes as well
            self._undo.append(partial(tensor.__setitem__, index, tensor[index].clone()))

    def keep_fields(self, owner: object, *names: str) -> None:
        """Keep these attributes of `owner`, which are about to be set."""
        if self._undo is not None:
            self._undo += [partial(setattr, owner, name, getattr(owner, name)) for name in names]

    def keep_way_back(self, undo: Callable[[], object]) -> None:
        """Keep the call that takes back what is about to be done."""
        if self._undo is not None:
            self._undo.append(undo)

    def run(self, operation: Callable[[], T]) -> T:
        """What `operation` gives; where it raises, all that was kept is put back first."""
        self._undo = []
        try:
            return operation()
        except BaseException:
            undo, self._undo = self._undo, None  # ways back are not to be recorded again
            while undo:
                undo.pop()()
            raise
        finally:
            self._undo = None
