"""The K/V data: a device pool and a host pool of slots, and attention over some of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvimpls.torch_paged.blocks import resized
from kvimpls.torch_paged.journal import Journal
from kvspec import Geometry, InvalidLength


@dataclass(frozen=True, slots=True)
class Heads:
    """What a row holds: the keys of all `kv` heads, `d_k` numbers each, and then their values.

    Raises `ValueError` where there are none of something, or query heads cannot share evenly.
    """

    query: int
    kv: int
    d_k: int
    d_v: int

    def __post_init__(self) -> None:
        if min(self.query, self.kv, self.d_k, self.d_v) < 1 or self.query % self.kv:
            raise ValueError(f"{self}: all are at least 1, and query heads share the others evenly")

    @property
    def width(self) -> int:
        """Numbers a row."""
        return self.kv * (self.d_k + self.d_v)

    def attention(self, rows: Tensor, query: Tensor) -> Tensor:
        """What a query of shape `(query, d_k)` gets from rows: shape `(query, d_v)`.

        Computed in float32 at least, and rounded to the type of `rows` once.
        """
        wide = torch.promote_types(rows.dtype, torch.float32)
        wider = rows.to(wide)
        part = self.kv * self.d_k
        keys = wider[:, :part].view(-1, self.kv, self.d_k)
        values = wider[:, part:].view(-1, self.kv, self.d_v)
        grouped = query.to(wide).view(self.kv, -1, self.d_k)
        scores = grouped @ keys.permute(1, 2, 0) / self.d_k**0.5  # (kv head, query head, position)
        # Not torch's softmax, which wakes all threads for a handful of numbers.
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        outputs = weights @ values.transpose(0, 1) / weights.sum(dim=-1, keepdim=True)
        attended: Tensor = outputs.reshape(self.query, self.d_v)
        return attended.to(rows.dtype)


class Store:
    """The rows of all slots, `block_size` a block, on the device and on the host.

    The host pool is pinned where the device is a CUDA one, as fast transfers want it.
    """

    def __init__(
        self,
        geometry: Geometry,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        journal: Journal,
    ) -> None:
        size = geometry.block_size
        self.slots = torch.zeros((geometry.num_blocks * size, width), dtype=dtype, device=device)
        pinned = device.type == "cuda" and geometry.num_host_blocks > 0
        shape = (geometry.num_host_blocks * size, width)
        self.host_slots = torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=pinned)
        self._dtype = self.host_slots.numpy().dtype
        self._block_size = size
        self._journal = journal

    def rows_of(self, values: Any) -> Tensor:
        """Values as a tensor like the slots, of any shape; `InvalidLength` for no numbers."""
        if isinstance(values, Tensor):
            return values.detach().to(self.slots)
        try:  # the copy is writable and in C order, which torch wants
            array = np.array(values, dtype=self._dtype, order="C")
        except (TypeError, ValueError) as error:
            raise InvalidLength("values are no array of shape (tokens, width)") from error
        return torch.from_numpy(array).to(self.slots)

    def slots_of(self, table: Tensor, start: int, stop: int) -> Tensor:
        """The slots of the positions `[start, stop)` of a table, shape `(stop - start,)`."""
        positions = torch.arange(start, stop, device=table.device)
        blocks = table[positions // self._block_size]
        return blocks * self._block_size + positions % self._block_size

    def copy(self, source: int, destination: int) -> None:
        """Copy a device block to another."""
        size = self._block_size
        to = slice(destination * size, (destination + 1) * size)
        self._journal.keep(self.slots, to)
        self.slots[to].copy_(self.slots[source * size : (source + 1) * size])

    def copy_out(self, blocks: Tensor, host_blocks: Tensor) -> None:
        """Copy device blocks to host blocks."""
        host = self._by_block(self.host_slots)
        to = host_blocks.cpu()
        self._journal.keep(host, to)
        host[to] = self._by_block(self.slots)[blocks].cpu()

    def copy_in(self, host_blocks: Tensor, blocks: Tensor) -> None:
        """Copy host blocks to device blocks."""
        device = self._by_block(self.slots)
        self._journal.keep(device, blocks)
        device[blocks] = self._by_block(self.host_slots)[host_blocks.cpu()].to(self.slots.device)

    def resize(self, blocks: int) -> None:
        """Have so many device blocks; those that stay keep their contents."""
        self._journal.keep_fields(self, "slots")
        self.slots = resized(self.slots, blocks * self._block_size, 0)

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what comes next: every row."""
        return tuple(slots.cpu().numpy().tobytes() for slots in (self.slots, self.host_slots))

    def _by_block(self, slots: Tensor) -> Tensor:
        """Slots, a view of shape `(blocks, block_size * width)`."""
        return slots.view(-1, self._block_size * slots.shape[1])
