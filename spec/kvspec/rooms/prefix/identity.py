"""What cached contents are: a key, and every token up to the end of the block.

Keys and values at a position depend on all tokens before it, and on whatever else the key stands
for: an adapter, an image, a salt. So a block is never cached for its own tokens alone. Keys of
different types are different keys, also where Python finds them equal.

Source: vllm-project/vllm#44701, where an adapter's name and a salt were one and the same key.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from attrs import field, frozen

Tokens = tuple[int, ...]

_WORD = 2**62 - 1
_ODD = 0x1E3779B97F4A7C15


@frozen(cache_hash=True)
class Contents:
    """The contents of one full block, the last of those that `tokens` fill, under a key."""

    tokens: Tokens
    name: str
    key: Any = field(eq=False, repr=False, default=None)

    @property
    def last_first(self) -> int:
        """Orders the blocks of one chain from its tail to its head."""
        return -len(self.tokens)

    def follows(self, other: "Contents") -> bool:
        """Whether this is the same chain as `other`, or goes on from it."""
        shared = self.tokens[: len(other.tokens)] == other.tokens
        return self.name == other.name and shared


def key_name(key: Any) -> str:
    """A text that is the same for equal keys of equal types only.

    >>> key_name(1), key_name(True), key_name("1"), key_name((1,))
    ('1', 'True', "'1'", '(1,)')
    """
    return repr(key)


def chain(tokens: Tokens, key: Any, block_size: int) -> Iterator[Contents]:
    """The contents of the full blocks of `tokens`, from the head on."""
    name = key_name(key)
    for end in range(block_size, len(tokens) + 1, block_size):
        yield Contents(tokens[:end], name, key)


@lru_cache(maxsize=4096)
def marks(tokens: Tokens, name: str) -> tuple[int, ...]:
    """For each position a number that stands for the key and all tokens up to there."""
    number = sum((byte + 1) * 257**i for i, byte in enumerate(name.encode())) & _WORD
    found = []
    for token in tokens:
        number = (number * _ODD + token + 1) & _WORD
        number ^= number >> 29
        found.append(number)
    return tuple(found)
