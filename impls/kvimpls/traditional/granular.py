"""Coarse granules: blocks on demand, anywhere, but 256 tokens' worth at a time."""

from kvimpls.reference import Reference
from kvspec import Contract, Geometries, Granular

GRANULE = 256
"""Tokens."""


class Granular256(Reference):
    """Takes blocks by the granule of 256 tokens, whatever the block size."""

    contract = Contract(
        capabilities=("core", "reservation", "admission"),
        reservation=Granular(GRANULE),
        geometries=Geometries(block_sizes=(16, 64), min_blocks=48),
    )

    def _need(self, length: int) -> int:
        granules = -(-length // GRANULE)
        return granules * -(-GRANULE // self._geometry.block_size)
