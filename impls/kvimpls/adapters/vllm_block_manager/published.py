"""The engine's own modules, as they were published, and what they ask of a sequence."""

from collections.abc import Sequence as Tokens
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from attrs import define

from kvimpls.adapters.engines import engine

_STAND_INS = (
    "torch",
    "cloudpickle",
    "zmq",
    # Only annotations and the statuses by which `Group` is asked for its sequence are used.
    "vllm.sequence",
    "vllm.platforms",
)

with engine("vllm-block", "0.1.0", bare=("vllm",), stand_ins=_STAND_INS, alias="vllm"):
    SelfAttnBlockSpaceManager: Any = import_module(
        "vllm.core.block_manager"
    ).SelfAttnBlockSpaceManager
    _allocators: Any = import_module("vllm.core.block.cpu_gpu_block_allocator")
    BlockTable: Any = import_module("vllm.core.block.block_table").BlockTable
    Device: Any = import_module("vllm.utils").Device

CpuGpuBlockAllocator: Any = _allocators.CpuGpuBlockAllocator
# CpuGpuBlockAllocator.create keeps block 0 for padding on one platform, and asks which one this is.
_allocators.current_platform = SimpleNamespace(is_hpu=lambda: False)


@define
class Sequence:
    """What the manager asks of a `vllm.sequence.Sequence`, which needs the whole package."""

    seq_id: int
    num_tokens: int = 0
    num_computed_tokens: int = 0

    @property
    def data(self) -> "Sequence":
        """Itself."""
        return self

    def get_token_ids(self) -> Tokens[int]:
        """Any tokens: nothing looks at them where nothing is cached."""
        return range(self.num_tokens)

    def get_num_computed_tokens(self) -> int:
        """What was reserved before; nothing asks without a sliding window."""
        return self.num_computed_tokens

    def extra_hash(self) -> None:
        """No adapter."""


@define
class Group:
    """What the manager asks of a `vllm.sequence.SequenceGroup`, with one sequence."""

    sequence: Sequence

    @property
    def request_id(self) -> str:
        """A request a sequence."""
        return str(self.sequence.seq_id)

    def get_seqs(self, status: Any = None) -> list[Sequence]:
        """The one sequence, which has the status that is asked for."""
        return [self.sequence]

    def is_encoder_decoder(self) -> bool:
        """It is not."""
        return False
