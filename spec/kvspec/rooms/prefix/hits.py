"""How much of a prompt must be found in the cache, how much may be, and what the rest needs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import frozen

from kvspec.contract import History
from kvspec.geometry import whole_blocks
from kvspec.kernel.state import State
from kvspec.rooms.prefix.facts import facts_of, surely_kept
from kvspec.rooms.prefix.identity import Contents, Tokens, chain

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


@frozen
class Hit:
    """A hit of `num_tokens`, and how many blocks the prompt then needs that are free now.

    Its first `gone` entries are released, since the window needs them no more. `least` and `most`
    differ where one of several blocks with the same contents may be taken, of
    which some have users and some have none.
    """

    num_tokens: int
    least: int
    most: int
    gone: int


@frozen
class Found:
    """The part of a prompt that must be found and the part that may be, in tokens."""

    must: int
    may: int


def found(
    state: State, spec: "Specification", tokens: Tokens, key: Any, most: int | None = None
) -> Found:
    """What a lookup of `tokens` must and may answer, up to `most` tokens."""
    facts, size = facts_of(state), spec.geometry.block_size
    run = list(chain(tokens if most is None else tokens[:most], key, size))
    may = [bool(facts.blocks_of(contents)) for contents in run]
    must = [
        there and surely_kept(contents, facts, spec)
        for there, contents in zip(may, run, strict=True)
    ]
    return Found(must=_longest(must, spec, 0), may=_longest(may, spec, -1))


def _longest(there: list[bool], spec: "Specification", which: int) -> int:
    """The most tokens of which every block is there that is not released, the fewest or the most.

    `which` of the numbers that may be released is meant.
    """
    size = spec.geometry.block_size
    for count in range(len(there), 0, -1):
        if all(there[spec.released_before_a_hit(count * size)[which] : count]):
            return count * size
    return 0


def usable(spec: "Specification", num_tokens: int) -> int:
    """How many tokens of a prompt may be a hit: one is left to compute, if the contract says so."""
    last = num_tokens - 1 if spec.contract.leave_one else num_tokens
    return whole_blocks(last, spec.geometry.block_size) * spec.geometry.block_size


def hits(state: State, spec: "Specification", tokens: Tokens, key: Any) -> Iterator[Hit]:
    """The hits that a prompt may have, the longest first."""
    size, facts = spec.geometry.block_size, facts_of(state)
    whole = found(state, spec, tokens, key, usable(spec, len(tokens)))
    run = list(chain(tokens, key, size))
    past = History(len(tokens), None, len(tokens), 0, spec.geometry.max_tokens)
    total = spec.least(past)
    for count in range(whole.may // size, whole.must // size - 1, -1):
        for gone in dict.fromkeys(spec.released_before_a_hit(count * size)):
            if all(facts.blocks_of(contents) for contents in run[gone:count]):
                revived = [_revived(state, spec, contents) for contents in run[gone:count]]
                yield Hit(
                    count * size,
                    total - count + sum(least for least, _ in revived),
                    total - count + sum(most for _, most in revived),
                    gone,
                )


def _revived(state: State, spec: "Specification", contents: Contents) -> tuple[int, int]:
    """Whether a block with these contents is taken out of the free ones: at least, at most."""
    free = [block not in state.at().held for block in facts_of(state).blocks_of(contents)]
    if spec.evicts_explicitly:  # what is kept is not among those that may be taken
        return int(all(free) and not surely_kept(contents, facts_of(state), spec)), 0
    return int(all(free)), int(any(free))
