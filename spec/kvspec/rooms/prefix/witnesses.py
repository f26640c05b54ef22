"""Short scripts in which the laws of the prefix cache bite, for any small geometry."""

from kvspec.geometry import Geometry
from kvspec.kernel.script import Call, call


def found_again(geometry: Geometry) -> tuple[Call, ...]:
    """A prompt is published, found by another, and by a third when both have gone."""
    size = geometry.block_size
    tokens = tuple(i % 2 for i in range(size + 1))
    return (
        call("allocate_prompt", seq=0, tokens=tokens),
        call("lookup", tokens=tokens),
        call("mark_written", seq=0, num_tokens=size + 1),
        call("lookup", tokens=tokens),
        call("lookup", tokens=tokens, key=0),
        call("allocate_prompt", seq=1, tokens=tokens),
        call("free", seq=0),
        call("free", seq=1),
        call("allocate_prompt", seq=2, tokens=tokens),
    )


def evicted(geometry: Geometry) -> tuple[Call, ...]:
    """Two published blocks become idle, and one of them must go for two new blocks."""
    size, others = geometry.block_size, geometry.num_blocks - 2
    tokens = tuple(i % 2 for i in range(2 * size))
    return (
        call("allocate_prompt", seq=0, tokens=tokens),
        call("mark_written", seq=0, num_tokens=2 * size),
        call("free", seq=0),
        call("allocate", seq=1, num_tokens=max(1, others - 1) * size),
        call("allocate", seq=2, num_tokens=2 * size),
        call("lookup", tokens=tokens),
    )
