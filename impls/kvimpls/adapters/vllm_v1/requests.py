"""Sequences as the engine has them: its own requests, with the hashes that it gives them."""

from collections.abc import Sequence
from typing import Any

from kvimpls.adapters.vllm_v1 import published
from kvspec import OutOfBlocks

_UNKNOWN = 0
"""Stands for a token whose value nobody said; what it is in has no hash."""

_PARAMS = published.SamplingParams(max_tokens=1)


class Sequences:
    """The requests of live sequences, with the hashes that the engine gives them."""

    def __init__(self, hash_block_size: int) -> None:
        self.requests: dict[int, Any] = {}
        self.unknown: set[str] = set()
        hashes = published.utils.get_request_block_hasher(hash_block_size, published.sha256)
        self._hasher = lambda request: [] if request.request_id in self.unknown else hashes(request)

    def request(self, seq: int, tokens: Sequence[int] = (), key: object = None) -> Any:
        """A request as `Request.from_engine_core_request` makes it; a salt is a string."""
        return published.requests.Request(
            request_id=str(seq),
            prompt_token_ids=[int(token) for token in tokens],
            sampling_params=_PARAMS,
            pooling_params=None,
            cache_salt=None if key is None else repr(key),
            block_hasher=self._hasher,
        )

    def admit(self, seq: int, request: Any) -> None:
        """Keep the request of a sequence that was scheduled, as `Scheduler.requests` does."""
        self.requests[seq] = request
        request.status = published.requests.RequestStatus.RUNNING
        request.num_computed_tokens = request.num_tokens  # Scheduler._update_after_schedule

    def extend(self, request: Any, tokens: Sequence[int]) -> None:
        """Tokens that were sampled and are computed, as in `_update_request_with_output`."""
        request.append_output_token_ids([int(token) for token in tokens])
        request.num_computed_tokens = request.num_tokens

    def extend_unknown(self, request: Any, num_tokens: int) -> None:
        """Tokens of which only the number is known, so that no hash comes after them."""
        if num_tokens:
            self.unknown.add(request.request_id)
        self.extend(request, [_UNKNOWN] * num_tokens)

    def end(self, seq: int) -> Any:
        """The request of a sequence that ends."""
        request = self.requests.pop(seq)
        self.unknown.discard(request.request_id)
        return request


def refusal(request: Any, num_tokens: int, free: int) -> OutOfBlocks:
    """The engine's `None`, as the interface has it."""
    return OutOfBlocks(
        f"no room for {num_tokens} tokens of request {request.request_id} after the "
        f"{request.num_computed_tokens} it has: {free} blocks are free"
    )


def block_ids(blocks: Sequence[Any]) -> list[int | None]:
    """The ids of blocks, `None` for the null block."""
    return [None if block.is_null else block.block_id for block in blocks]
