"""What `kvspec size` says about a model, as one value; its JSON is made of it."""

from typing import Any

import attrs
from attrs import frozen

from kvspec.sizing.architecture import Architecture, Latent
from kvspec.sizing.element import BF16, Element
from kvspec.sizing.measure import Measure, Slope, Waste

FORMAT = "kvspec.size"
VERSION = 1

LENGTHS = (1 << 10, 8 << 10, 32 << 10)
"""The default lengths, in tokens."""

BLOCK_SIZES = (8, 16, 32, 64, 128, 256, 512)
"""The default block sizes, in tokens."""


@frozen
class Row:
    """A sequence of `tokens` tokens, in bytes: on one rank, and on all ranks together."""

    tokens: int
    rank_bytes: int
    all_ranks_bytes: int
    rank_bytes_if_no_layer_drops_tokens: int


@frozen
class Fit:
    """How many sequences of `tokens` tokens in blocks of `block_size` fit on a rank."""

    tokens: int
    block_size: int
    sequence_bytes: int
    sequences: int


@frozen
class Report:
    """The answer of `kvspec size`: the model, and its cache as one of `ranks` ranks holds it."""

    architecture: Architecture
    element: Element
    ranks: int
    source: str
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    slopes: tuple[Slope, ...]
    rows: tuple[Row, ...]
    waste: tuple[Waste, ...]
    memory_bytes: int | None
    fits: tuple[Fit, ...]

    @property
    def measure(self) -> Measure:
        """The arithmetic that the report is made of."""
        return Measure(self.architecture, self.element, self.ranks)

    def as_data(self) -> dict[str, Any]:
        """The report as JSON values: exact whole numbers, with their unit in the name."""
        model = self.architecture
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": {
                "name": model.name,
                "source": self.source,
                "checked": list(self.checked),
                "unchecked": list(self.unchecked),
                "assumed": list(model.notes),
                "attention": model.attention,
                "query_heads": model.query_heads,
                "layers": [_layers(self.measure, group) for group in model.layers],
            },
            "element": {
                "dtype": self.element.dtype,
                "bits": self.element.bits,
                "scales": self.element.scales and attrs.asdict(self.element.scales),
            },
            "tensor_parallel_ranks": self.ranks,
            "token_bytes_a_rank": self.measure.token_bytes,
            "slopes_a_rank": [attrs.asdict(slope) for slope in self.slopes],
            "sequences": [attrs.asdict(row) for row in self.rows],
            "block_sizes": [attrs.asdict(waste) for waste in self.waste],
            "memory_bytes_a_rank": self.memory_bytes,
            "fits": [attrs.asdict(fit) for fit in self.fits],
        }


def _layers(measure: Measure, group: Any) -> dict[str, Any]:
    kind = "latent" if isinstance(group.storage, Latent) else "heads"
    return {
        "count": group.count,
        "storage": {"kind": kind, **attrs.asdict(group.storage)},
        "span": attrs.asdict(group.span),
        "token_bytes_a_rank": measure.layer_bytes(group),
    }


def report(
    architecture: Architecture,
    element: Element = BF16,
    *,
    ranks: int = 1,
    lengths: tuple[int, ...] = LENGTHS,
    block_sizes: tuple[int, ...] = BLOCK_SIZES,
    memory_bytes: int | None = None,
    source: str = "",
    checked: tuple[str, ...] = (),
    unchecked: tuple[str, ...] = (),
) -> Report:
    """The report on a model; raises `SizingError` where its heads do not divide among the ranks."""
    measure = Measure(architecture, element, ranks)
    return Report(
        architecture=architecture,
        element=element,
        ranks=ranks,
        source=source,
        checked=checked,
        unchecked=unchecked,
        slopes=measure.slopes(),
        rows=tuple(
            Row(
                tokens=length,
                rank_bytes=measure.sequence_bytes(length),
                all_ranks_bytes=ranks * measure.sequence_bytes(length),
                rank_bytes_if_no_layer_drops_tokens=measure.unwindowed_bytes(length),
            )
            for length in lengths
        ),
        waste=tuple(measure.waste(size) for size in block_sizes),
        memory_bytes=memory_bytes,
        fits=()
        if memory_bytes is None
        else tuple(
            Fit(
                tokens=length,
                block_size=size,
                sequence_bytes=measure.blocks_bytes(length, size),
                sequences=measure.fit(memory_bytes, length, size),
            )
            for length in lengths
            for size in block_sizes
        ),
    )
