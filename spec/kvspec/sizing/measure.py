"""The bytes of a KV cache: a token, a sequence, a block, and how many sequences fit.

Everything is a whole number of bytes on one rank. A sequence's bytes are piecewise linear in its
length: the slope falls where a kind of layer has reached its window and from then on drops as
many tokens as it adds.
"""

from attrs import frozen

from kvspec.sizing.architecture import Architecture, Layers
from kvspec.sizing.element import BF16, Element


@frozen
class Slope:
    """From token `first` to token `last` (`None`: for ever) each token adds `token_bytes` bytes."""

    first: int
    last: int | None
    token_bytes: int


@frozen
class Waste:
    """What blocks of `block_size` tokens waste of a sequence, in tokens and in bytes of one rank.

    `tail` is the unused end of the last block, in all layers; `stale` are slots of a windowed
    layer's oldest block that no token needs any more, once the sequence has outgrown the
    window. Means are for a length that is uniform modulo the block size; they are given twice,
    since (B - 1) / 2 is not whole.
    """

    block_size: int
    block_bytes: int
    tail_tokens_worst: int
    tail_tokens_twice_mean: int
    tail_bytes_worst: int
    tail_bytes_twice_mean: int
    stale_bytes_worst: int
    stale_bytes_twice_mean: int


@frozen
class Measure:
    """The KV cache of an architecture with these elements, as one of `ranks` ranks holds it.

    The ranks are those of tensor parallelism. Raises `SizingError` where the heads cannot be
    divided among them.

    >>> from kvspec.sizing.architecture import Heads
    >>> llama = Architecture("llama", 32, (Layers(32, Heads(8, 128)),))
    >>> Measure(llama).token_bytes, Measure(llama, ranks=8).token_bytes
    (131072, 16384)
    """

    architecture: Architecture
    element: Element = BF16
    ranks: int = 1

    def __attrs_post_init__(self) -> None:
        self.architecture.check_ranks(self.ranks)

    def layer_bytes(self, layers: Layers) -> int:
        """The bytes of one token in one of these layers."""
        return sum(self.element.vector_bytes(d) for d in layers.storage.vectors(self.ranks))

    @property
    def token_bytes(self) -> int:
        """The bytes of one token in all layers: the slope of a sequence that is in every window."""
        return sum(group.count * self.layer_bytes(group) for group in self.architecture.layers)

    @property
    def windowed(self) -> bool:
        """Whether some layers drop tokens."""
        return any(group.span.tokens is not None for group in self.architecture.layers)

    def sequence_bytes(self, tokens: int) -> int:
        """The bytes that a sequence needs at most while it grows to `tokens` tokens."""
        return sum(
            group.count * self.layer_bytes(group) * group.span.kept(tokens)
            for group in self.architecture.layers
        )

    def unwindowed_bytes(self, tokens: int) -> int:
        """The bytes of a sequence where every layer keeps every token, as some engines do."""
        return tokens * self.token_bytes

    def slopes(self) -> tuple[Slope, ...]:
        """The bytes that each further token adds, from the first token on."""
        groups = self.architecture.layers
        ends = sorted({g.span.tokens for g in groups if g.span.tokens is not None})
        found = []
        for first, last in zip([1, *(end + 1 for end in ends)], [*ends, None], strict=True):
            slope = self.sequence_bytes(first) - self.sequence_bytes(first - 1)
            found.append(Slope(first, last, slope))
        return tuple(found)

    def block_bytes(self, block_size: int) -> int:
        """The bytes of one block of `block_size` tokens, in all layers."""
        return block_size * self.token_bytes

    def blocks_bytes(self, tokens: int, block_size: int) -> int:
        """The bytes of the whole blocks that a sequence holds at most while it grows to `tokens`.

        Each kind of layer has a block table of its own, as with vLLM's hybrid allocator.
        """
        return sum(
            group.count
            * self.layer_bytes(group)
            * group.span.blocks(tokens, block_size)
            * block_size
            for group in self.architecture.layers
        )

    def fit(self, memory_bytes: int, tokens: int, block_size: int) -> int:
        """How many sequences of `tokens` tokens have room in `memory_bytes` on each rank.

        Each has its blocks to itself (no sharing), and enough of them for its worst moment.
        """
        return memory_bytes // self.blocks_bytes(tokens, block_size)

    def waste(self, block_size: int) -> Waste:
        """What blocks of `block_size` tokens waste of one sequence."""
        tail = block_size - 1
        worst = mean = 0
        for group in self.architecture.layers:
            most, twice = group.span.stale(block_size)
            worst += most * group.count * self.layer_bytes(group)
            mean += twice * group.count * self.layer_bytes(group)
        return Waste(
            block_size=block_size,
            block_bytes=self.block_bytes(block_size),
            tail_tokens_worst=tail,
            tail_tokens_twice_mean=tail,
            tail_bytes_worst=tail * self.token_bytes,
            tail_bytes_twice_mean=tail * self.token_bytes,
            stale_bytes_worst=worst,
            stale_bytes_twice_mean=mean,
        )
