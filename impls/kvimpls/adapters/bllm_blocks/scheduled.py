"""Requests: blocks that `Scheduler` reserves, and rows where its steps write them."""

from typing import Any
from uuid import uuid4

import torch
from attrs import evolve

from kvimpls.adapters.bllm_blocks.published import (
    BlockAllocator,
    InferenceRequest,
    PagedKVCache,
    Scheduler,
    cache_config,
    inference_config,
    keys_and_values,
    page_table,
    rows,
)
from kvimpls.adapters.small import HEAD_DIM, KV_HEADS
from kvspec import Contract, Geometries, Geometry, OutOfBlocks, ToMax, Unspecified


class Requests:
    """`Scheduler` with its allocator, page table and contiguous cache: core and store.

    The rows of a token lie where the engine's own steps write them: at the position that
    `SchedulerOutput` names. A sequence is a request. An empty prompt cannot be prefilled, so one is
    submitted with its first tokens. How long it will get is not known here, so it asks for all that
    `max_seq_len` allows.

    Source: bllm-inference 0.1.0, scheduler/scheduler.py, scheduler/request.py and, for the calls'
    surroundings, engine/inference_engine.py and attention/paged_attention.py.
    """

    contract: Contract = Contract(
        # Not sharing: BlockAllocator has "no reference counting". Not admission: can_allocate says
        # yes or no, and the answer "never" is add_request's, which is a deed.
        capabilities=("core", "store"),
        # Scheduler._try_admit_requests allocates for expected_total_len, "prompt + max generation".
        reservation=ToMax(),
        # Ids are uuid4 in InferenceEngine.generate, and nothing looks whether one is in use; tokens
        # are lists, of which no length is negative; nobody asks for a request that is not there.
        misuse="callers_duty",
        # InferenceConfig.max_seq_len has no value for "no limit".
        geometries=Geometries(max_tokens="required"),
    )

    width = 2 * KV_HEADS * HEAD_DIM
    dtype = "float32"

    def __init__(self, geometry: Geometry) -> None:
        config, inference = cache_config(geometry), inference_config(geometry)
        self.max_seq_len: int = inference.max_seq_len
        self.page_table: Any = page_table(config, inference)
        self.allocator: Any = BlockAllocator(config.num_blocks, config.block_size)
        self.scheduler: Any = Scheduler(config, inference, self.allocator, self.page_table)
        self.kv_cache: Any = PagedKVCache(config)
        self.requests: dict[int, Any] = {}  # None for one that has no tokens yet
        self.positions: dict[int, list[int]] = {}  # where the engine writes each token

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.requests}
        return f"{type(self).__name__}({tables}, {self.scheduler.get_stats()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Submit a request with a prompt of `num_tokens`, to be admitted at once."""
        request = self._admitted(num_tokens) if num_tokens else None
        self.requests[seq] = request
        self.positions[seq] = list(range(num_tokens))  # InferenceEngine._run_prefill: from 0 on

    def _admitted(self, num_tokens: int) -> Any:
        request = InferenceRequest(
            request_id=str(uuid4()),
            prompt_tokens=range(num_tokens),
            max_new_tokens=self._new_tokens(num_tokens),
        )
        # InferenceEngine.generate: add_request, whose refusal marks the request as failed; then
        # _step, in which Scheduler.schedule admits it or leaves it in the queue, from which
        # abort_request takes it.
        if not self.scheduler.add_request(request):
            raise OutOfBlocks(request.error_message)
        self.scheduler.schedule()
        if request.sequence.batch_slot < 0:
            self.scheduler.abort_request(request.request_id)
            raise OutOfBlocks(f"it waits: {self.num_free_blocks()} blocks are free")
        # The last token that is generated is not decoded: for each that is, there is one more.
        request.max_new_tokens += 1
        return request

    def _new_tokens(self, num_tokens: int) -> int:
        return max(0, self.max_seq_len - num_tokens)

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for tokens of `seq` that were generated one after the other."""
        request = self.requests[seq]
        if request is None:
            if num_tokens:
                self.allocate(seq, num_tokens)
            return
        for _ in range(num_tokens):
            # InferenceEngine._step: what one step has generated is processed, and the next decodes
            # it at the position that schedule() names.
            self.scheduler.process_outputs({request.request_id: 0}, eos_token_id=-1)
            output = self.scheduler.schedule()
            place = output.decode_requests.index(request)
            self.positions[seq].append(output.decode_start_positions[place])

    def free(self, seq: int) -> None:
        """End `seq`, as `abort_request` does and as one ends that is finished."""
        request = self.requests.pop(seq)
        del self.positions[seq]
        if request is not None:
            self.scheduler.abort_request(request.request_id)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        request = self.requests[seq]
        if request is None:
            return []
        blocks: list[int] = self.page_table.get_physical_blocks(request.sequence.batch_slot)
        return blocks

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.allocator.num_free_blocks
        return count

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows where the engine's own steps write them.

        As `PagedAttention.forward`: the prompt from position 0 on, then each token of a decode at
        the position that the scheduler gave it.
        """
        keys, numbers = keys_and_values(values)
        for row in range(len(keys)):
            self.kv_cache.write_contiguous(
                layer_idx=0,
                start_pos=self.positions[seq][start + row],
                keys=keys[row : row + 1],
                values=numbers[row : row + 1],
                batch_idx=self.requests[seq].sequence.batch_slot,
            )

    def read(self, seq: int) -> Any:
        """The rows that a decode attends to: all from position 0 on."""
        length = len(self.positions[seq])
        if length == 0:
            return torch.zeros(0, self.width).numpy()
        slot = self.requests[seq].sequence.batch_slot
        return rows(*self.kv_cache.read_contiguous(0, length, slot))


class PlacedRequests(Requests):
    """The same requests, whose rows lie where the suite's caller asks for them: core and store.

    `write_contiguous` takes any "starting position in sequence". So the cache and its slots are
    judged apart from the positions that the scheduler gives.
    """

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for generated tokens of `seq`, at the positions that follow."""
        length = len(self.positions[seq])
        super().append(seq, num_tokens)
        self.positions[seq] = list(range(length + num_tokens))


class FixedRequests(Requests):
    """The same requests, all of which ask for the same number of new tokens: core.

    So does `InferenceEngine.generate`, whose `max_new_tokens` is 128 whatever the prompt is. Here
    it is a block's.
    """

    contract = evolve(
        Requests.contract,
        capabilities=("core",),
        # expected_total_len is the prompt and what the caller asks for, which the interface has no
        # word for; a request ends where it has generated that.
        reservation=Unspecified(),
    )

    def _new_tokens(self, num_tokens: int) -> int:
        return int(self.allocator.block_size)

    def append(self, seq: int, num_tokens: int) -> None:
        """Generate tokens of `seq`, as many as it asked for."""
        request = self.requests[seq]
        done = 0 if request is None else request.sequence.generated_len
        if request is not None and done + num_tokens >= request.max_new_tokens:
            raise OutOfBlocks(f"it asked for {request.max_new_tokens - 1} tokens and has {done}")
        super().append(seq, num_tokens)
