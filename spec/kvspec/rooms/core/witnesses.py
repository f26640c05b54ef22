"""Short scripts in which the laws of the core bite, for any small geometry."""

from kvspec.geometry import Geometry, blocks_for
from kvspec.kernel.script import Call, call


def one_sequence(geometry: Geometry) -> tuple[Call, ...]:
    """One sequence comes, grows and goes."""
    return (
        call("allocate", seq=0, num_tokens=1),
        call("append", seq=0, num_tokens=geometry.block_size),
        call("free", seq=0),
    )


def two_sequences(geometry: Geometry) -> tuple[Call, ...]:
    """Two sequences grow beside each other; one goes, and its blocks are used again."""
    size = geometry.block_size
    return (
        call("allocate", seq=0, num_tokens=size),
        call("allocate", seq=1, num_tokens=1),
        call("append", seq=0, num_tokens=1),
        call("free", seq=0),
        call("allocate", seq=2, num_tokens=size + 1),
    )


def refusal(geometry: Geometry) -> tuple[Call, ...]:
    """More is asked for than is free, twice; then an exact fit."""
    size, rest, most = geometry.block_size, geometry.num_blocks - 1, geometry.max_tokens
    if most is not None and most <= rest * size:  # then it takes several to fill the pool
        count = geometry.num_blocks // blocks_for(most, size)
        more = call("allocate", seq=count, num_tokens=most)
        full = (call("allocate", seq=seq, num_tokens=most) for seq in range(count))
        return (*full, more, more, call("free", seq=0), more)
    return (
        call("allocate", seq=0, num_tokens=size),
        call("allocate", seq=1, num_tokens=rest * size + 1),
        call("allocate", seq=1, num_tokens=rest * size + 1),
        call("allocate", seq=1, num_tokens=rest * size),
    )


def misuse(geometry: Geometry) -> tuple[Call, ...]:
    """Unknown ids, an id in use, and lengths that are none."""
    return (
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=0, num_tokens=1),
        call("append", seq=1, num_tokens=1),
        call("append", seq=0, num_tokens=-1),
        call("free", seq=1),
    )
