"""Faults of leases: blocks reused while something in flight still reads or writes them."""

from kvimpls.reference import Reference
from kvspec import Copy


class ReuseWhileLeased(Reference):
    """Freeing a sequence ignores its leases, so that its blocks are reused under the transfer.

    sgl-project/sglang#35049, where an abort freed pages that a remote writer was still filling.
    """

    def free(self, seq: int) -> list[Copy]:
        """End `seq`, and with it every claim of a lease to its blocks."""
        blocks = self._sequence(seq).blocks
        self._leases = {
            lease: [block for block in leased if block not in blocks]
            for lease, leased in self._leases.items()
        }
        return super().free(seq)


class FirstLeaseReleases(Reference):
    """The first lease on a block to end releases it, as if leases were a flag and not a count.

    No public report of this is known to us.
    """

    def end_transfer(self, lease: object) -> list[Copy]:
        """End `lease`, and the claims of all others to its blocks."""
        ended = self._leased_by(lease)
        self._leases = {
            other: leased if other is lease else [block for block in leased if block not in ended]
            for other, leased in self._leases.items()
        }
        return super().end_transfer(lease)
