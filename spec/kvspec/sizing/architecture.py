"""What the layers of a model keep of each token, and of how many tokens.

Two questions decide the size of a KV cache. What does a layer store of one token: a key and a
value a KV head (`Heads`), or one latent that all heads share (`Latent`)? And of which tokens
does it still need that: of all, of a window, of a chunk (`Span`)? All sizes here are in numbers
and in tokens; bytes come with `element`.

Sources: GQA, Ainslie et al. 2023 (arXiv:2305.13245); MLA, DeepSeek-V2 (arXiv:2405.04434);
sliding windows, Mistral 7B (arXiv:2310.06825).
"""

from math import gcd
from typing import Literal

from attrs import field, frozen

from kvspec.geometry import blocks_for


class SizingError(ValueError):
    """What cannot be sized; its text is one clear line."""


@frozen
class Heads:
    """One key and one value a KV head, each a vector of `head_dim` elements."""

    kv_heads: int
    head_dim: int

    def vectors(self, ranks: int) -> tuple[int, ...]:
        """The dimensions of the vectors that each of `ranks` ranks stores of one token.

        With fewer KV heads than ranks a head is replicated.

        >>> Heads(kv_heads=2, head_dim=64).vectors(1)
        (64, 64, 64, 64)
        >>> Heads(kv_heads=2, head_dim=64).vectors(8)
        (64, 64)
        """
        return (self.head_dim,) * (2 * max(1, self.kv_heads // ranks))


@frozen
class Latent:
    """One latent a token for all heads, from which they compute their keys and values.

    It holds `rank` compressed elements and `rope_dim` elements of a key with its position.
    There is no factor 2: keys and values come from the same latent.
    """

    rank: int
    rope_dim: int

    def vectors(self, ranks: int) -> tuple[int, ...]:
        """The dimensions of the vectors that each of `ranks` ranks stores of one token.

        Every head needs the whole latent, so every rank has a copy.

        >>> Latent(rank=512, rope_dim=64).vectors(8)
        (576,)
        """
        return (self.rank + self.rope_dim,)


Storage = Heads | Latent


@frozen
class Span:
    """Which tokens a layer still needs: all, the last `tokens`, or those of the current chunk.

    A sliding window of `tokens` includes the token that is being computed. A chunked layer
    attends from the start of the chunk of `tokens` tokens that its token lies in.
    """

    kind: Literal["full", "sliding", "chunked"] = "full"
    tokens: int | None = None

    def kept(self, length: int) -> int:
        """The most tokens that are needed at once while a sequence grows to `length`.

        For a chunked layer this is the peak: what it needs falls to one token whenever a
        chunk begins.

        >>> [Span("sliding", 4).kept(n) for n in (1, 4, 5, 99)]
        [1, 4, 4, 4]
        """
        return length if self.tokens is None else min(length, self.tokens)

    def blocks(self, length: int, block_size: int) -> int:
        """The most blocks that are held at once while a sequence grows by tokens to `length`.

        A window seldom begins where a block does, so it touches up to one block more than it
        fills. Exact, but for chunks that whole blocks do not fill: there it is an upper bound.

        >>> Span("sliding", 4096).blocks(100_000, 16), Span("chunked", 8192).blocks(100_000, 16)
        (257, 512)
        """
        needed = blocks_for(length, block_size)
        if self.tokens is None:
            return needed
        return min(
            needed, blocks_for(block_size - self._step(block_size) + self.tokens, block_size)
        )

    def stale(self, block_size: int) -> tuple[int, int]:
        """The slots of the oldest block that no token needs: the most, and twice the mean.

        For a sequence that has outgrown the span, and a length that is uniform modulo the
        block size.

        >>> Span("sliding", 4096).stale(16), Span("chunked", 8192).stale(16), Span().stale(16)
        ((15, 15), (0, 0), (0, 0))
        """
        if self.tokens is None:
            return 0, 0
        most = block_size - self._step(block_size)
        return most, most

    def _step(self, block_size: int) -> int:
        # What is needed begins anywhere in a block, or for chunks at multiples of this.
        return gcd(self.tokens or 0, block_size) if self.kind == "chunked" else 1


FULL = Span()


@frozen
class Layers:
    """`count` layers that store the same and need the same tokens."""

    count: int
    storage: Storage
    span: Span = FULL


@frozen
class Architecture:
    """A model, as far as its KV cache goes: its name, its query heads and its layers.

    `notes` says what was assumed because the source did not say it.
    """

    name: str
    query_heads: int
    layers: tuple[Layers, ...]
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def num_layers(self) -> int:
        """How many layers have a KV cache."""
        return sum(group.count for group in self.layers)

    @property
    def attention(self) -> str:
        """What the heads share: MHA, GQA, MQA or MLA, joined by `+` where layers differ."""
        return "+".join(dict.fromkeys(_sharing(g.storage, self.query_heads) for g in self.layers))

    def check_ranks(self, ranks: int) -> None:
        """Raise `SizingError` unless the heads can be divided among `ranks` ranks.

        Engines give each rank the same number of query heads, and whole KV heads or a copy of
        one, so one of the numbers of ranks and of KV heads must divide the other.
        """
        if self.query_heads % ranks:
            raise SizingError(
                f"{self.name} has {self.query_heads} query heads, which {ranks} ranks cannot "
                f"share equally: the tensor-parallel size must divide {self.query_heads}"
            )
        for group in self.layers:
            kv_heads = group.storage.kv_heads if isinstance(group.storage, Heads) else ranks
            if kv_heads % ranks and ranks % kv_heads:
                raise SizingError(
                    f"{self.name} has {kv_heads} KV heads, which {ranks} ranks can neither "
                    "share nor replicate equally: one number must divide the other"
                )


def _sharing(storage: Storage, query_heads: int) -> str:
    if isinstance(storage, Latent):
        return "MLA"
    if storage.kv_heads == query_heads:
        return "MHA"
    return "MQA" if storage.kv_heads == 1 else "GQA"


def grouped(layers: list[tuple[Storage, Span]]) -> tuple[Layers, ...]:
    """The layers with equal ones counted together, in the order in which each first appears."""
    counts: dict[tuple[Storage, Span], int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(Layers(count, storage, span) for (storage, span), count in counts.items())
