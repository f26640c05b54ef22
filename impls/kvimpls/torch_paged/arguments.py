"""What the caller gave, as plain ints; `InvalidLength` or `AllocatorError` for what is none."""

import operator
from typing import Any, SupportsIndex

from kvspec import AllocatorError, InvalidLength


def whole(number: SupportsIndex) -> int:
    """A number of tokens as an int: `InvalidLength` if it is negative or no integer.

    >>> whole(True)
    1
    """
    try:
        value = operator.index(number)
    except TypeError:
        raise InvalidLength(f"a {type(number).__name__} is no number of tokens") from None
    if value < 0:
        raise InvalidLength(f"{value} tokens")
    return value


def integers(values: Any) -> list[int]:
    """An array, list or tuple of integers as a list, a copy; else `AllocatorError`.

    >>> import numpy as np
    >>> integers(np.arange(3)), integers((1, 2))
    ([0, 1, 2], [1, 2])
    """
    to_list = getattr(values, "tolist", None)  # of arrays and tensors: one transfer, plain ints
    try:
        return [operator.index(value) for value in (to_list() if to_list else values)]
    except TypeError:
        raise AllocatorError(f"this {type(values).__name__} is no row of integers") from None
