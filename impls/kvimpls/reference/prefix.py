"""When contents are the same, and where they are cached.

The keys and values of a token depend on all tokens before it, and on what else the model is
given: an adapter, an image. So the contents of a block are known by its tokens, all those before
them, and the key: the chain that vLLM and SGLang hash, here kept in full, where nothing collides.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple


class Contents(NamedTuple):
    """What is in a block: under which key, the tokens up to its last."""

    key: Any
    tokens: tuple[int, ...]


def typed(key: Any) -> Any:
    """A key that is equal to another only if the types are, too, at every depth.

    >>> len({1, 1.0, True}), len({typed(1), typed(1.0), typed(True), typed((1,)), typed((1.0,))})
    (1, 5)
    """
    if isinstance(key, tuple):
        return (tuple, *map(typed, key))
    return (type(key), key)


def plain(tokens: Iterable[Any]) -> tuple[int, ...]:
    """The tokens of a list, a tuple or an array, as plain ints."""
    return tuple(int(operator.index(token)) for token in tokens)


class Cache:
    """The blocks whose contents can be found; of several with the same, the first to be there."""

    def __init__(self) -> None:
        self.blocks: dict[Contents, int] = {}
        self.contents: dict[int, Contents] = {}
