"""The index of cached contents: a tree of what blocks hold, and the block that holds it.

The contents of a full block are all tokens up to its end, under a key. Such contents are equal
exactly if they are the same node of a tree whose root is the key and whose edges are the tokens
of one block each (the radix tree of SGLang, Zheng et al., NeurIPS 2024); so there is no hash
that could collide, and comparing two is comparing two pointers. A node lives as long as a
sequence, a cached block or a longer node refers to it.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from kvimpls.torch_paged.journal import Journal


class Content:
    """A key and the tokens of some full blocks; `block` has them cached, if one does."""

    __slots__ = ("__weakref__", "block")

    def __init__(self) -> None:
        self.block: int | None = None


class PrefixIndex:
    """Which contents are cached in which block.

    >>> index = PrefixIndex(2, Journal())
    >>> root = index.root(None)
    >>> first, second = index.further(root, [1, 2, 3, 4, 5])
    >>> index.add(first, 7)
    >>> [content.block for content in index.known([1, 2, 3, 4, 5], None)]
    [None, 7, None]
    >>> [content.block for content in index.known([1, 2], "adapter")]
    []
    """

    def __init__(self, block_size: int, journal: Journal) -> None:
        self.epoch = 0  # sequences of an earlier one publish nothing
        self._block_size = block_size
        # A node by the next shorter one and the tokens in between, a root by its key; an entry
        # holds the shorter node and goes with the longer one.
        self._tree: WeakValueDictionary[tuple[Content | None, Hashable], Content]
        self._tree = WeakValueDictionary()
        self._cached: dict[int, Content] = {}
        self._journal = journal
        self.unkeyed = self.root(None)  # kept, since most sequences start from it

    def __contains__(self, block: int) -> bool:
        return block in self._cached

    def root(self, key: Any) -> Content:
        """The contents of no block under `key`."""
        return self._node(None, _typed(key))

    def known(self, tokens: Sequence[int], key: Any) -> list[Content]:
        """The root and the contents of leading full blocks, as far as anything refers to them."""
        content = self._tree.get((None, _typed(key)))
        found: list[Content] = []
        for part in self._parts(tokens):
            if content is None:
                return found
            found.append(content)
            content = self._tree.get((content, part))
        return found if content is None else [*found, content]

    def further(self, content: Content, tokens: Sequence[int]) -> list[Content]:
        """The contents of the full blocks of `tokens`, where they come after `content`."""
        longer = []
        for part in self._parts(tokens):
            content = self._node(content, part)
            longer.append(content)
        return longer

    def add(self, content: Content, block: int) -> None:
        """From now on `block` has `content`, which no other block has."""
        self._journal.keep_way_back(partial(self.remove, [block]))
        self._cached[block] = content
        content.block = block

    def remove(self, blocks: list[int]) -> None:
        """Forget what these blocks have."""
        for block in blocks:
            content = self._cached.pop(block)
            self._journal.keep_way_back(partial(self.add, content, block))
            content.block = None

    def reset(self) -> None:
        """Forget all contents, and let live sequences publish nothing any more."""
        self.remove(list(self._cached))
        self._journal.keep_fields(self, "epoch")
        self.epoch += 1

    def fingerprint(self, chains: Iterable[Sequence[Content]]) -> tuple[object, ...]:
        """All that decides what comes next: what is cached where, and what each of `chains` is.

        A chain begins with its root. Contents that no block has are found and missed alike,
        whether or not anything refers to them.
        """
        edges = {node: edge for edge, node in self._tree.items()}

        def path(content: Content | None) -> tuple[Hashable, ...]:
            found: list[Hashable] = []
            while content is not None:
                content, part = edges[content]
                found.append(part)
            return tuple(reversed(found))

        cached = sorted((block, path(content)) for block, content in self._cached.items())
        return cached, [(len(chain), path(chain[-1])) for chain in chains]

    def _node(self, shorter: Content | None, edge: Hashable) -> Content:
        """The node at the end of an edge, which there may not have been."""
        node = self._tree.get((shorter, edge))
        if node is None:
            node = self._tree[shorter, edge] = Content()
        return node

    def _parts(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The tokens of each full block."""
        size = self._block_size
        return [tuple(tokens[i : i + size]) for i in range(0, len(tokens) - size + 1, size)]


def _typed(key: Any) -> Hashable:
    """A key with its type, so that 1, 1.0 and True are different ones.

    >>> len({_typed(key) for key in (1, 1.0, True, "1", None, (1,), (True,), ((1,),))})
    8
    """
    if type(key) is tuple:
        return (tuple, *map(_typed, key))
    return (type(key), key)
