"""What an engine may try with the prefix cache.

Tokens and keys come from tiny alphabets, so that prompts collide, share their first blocks, and
differ in the last token before a boundary, or in the key alone.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from kvspec.kernel.chooser import Chooser
from kvspec.kernel.generation import (
    fit,
    length_near_boundary,
    live,
    longest,
    new_ids,
    room_for_another,
    some_live,
)
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Proposal
from kvspec.kernel.script import call
from kvspec.kernel.state import State
from kvspec.rooms.prefix.facts import facts_of
from kvspec.rooms.prefix.identity import Tokens, key_name
from kvspec.rooms.prefix.operations import (
    AllocatePrompt,
    AppendTokens,
    Lookup,
    MarkWritten,
    ResetCache,
)

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

KEYS: tuple[Any, ...] = (
    None,
    0,
    "0",
    False,
    ("0",),
    ("0", None),
    (None, "0"),
    (0, "0"),
    (False, "0"),
)
"""Some are equal in Python, or as texts, or in a part, or hidden in one another; all differ."""

LETTERS = (0, 1)
"""Two tokens are enough for prompts to collide, and to differ."""

_MOST_TOKENS = 64
"""Longer prompts show nothing new, and make traces hard to read."""


def _known(state: State) -> list[tuple[Tokens, Any]]:
    """The prompts that are worth asking for: live ones, published ones, and some that were lost."""
    facts = facts_of(state)
    prompts: list[tuple[Tokens, Any]] = [
        (author.tokens, author.key) for author in facts.authors.values() if author.tokens
    ]
    prompts += [(contents.tokens, contents.key) for contents in facts.published.values()]
    prompts += [(contents.tokens, contents.key) for contents in facts.lost]
    longest: list[tuple[Tokens, Any]] = []
    for tokens, key in sorted(prompts, key=lambda prompt: -len(prompt[0])):
        if not any(o[: len(tokens)] == tokens and _same(k, key) for o, k in longest):
            longest.append((tokens, key))
    return longest


def _same(key: Any, other: Any) -> bool:
    return key_name(key) == key_name(other)


def queries(state: State, spec: "Specification") -> Sequence[Operation]:
    """Lookups of two of the known prompts, in turn, and of one of them under another key."""
    known = state.once(_known)
    if not known:
        return ()
    asked: list[Operation] = [
        Lookup(*known[(2 * state.clock + i) % len(known)]) for i in range(min(2, len(known)))
    ]
    tokens, key = known[state.clock % len(known)]
    others = [other for other in KEYS if not _same(other, key)]
    return [*asked, Lookup(tokens, others[state.clock % len(others)])]


def _prompt(state: State, chooser: Chooser, length: int) -> tuple[Tokens, Any]:
    """A prompt of that length: mostly one that is known, now and then with one token changed."""
    known = state.once(_known)
    tokens, key = chooser.pick(known) if known else ((), None)
    if known and chooser.integer(0, 5) == 0:
        key = chooser.pick(KEYS)
    prompt = list(tokens[:length])
    while len(prompt) < length:
        prompt.append(chooser.integer(0, 1))
    if prompt and chooser.integer(0, 4) == 0:
        at = chooser.integer(0, len(prompt) - 1, near=(0, len(prompt) - 1))
        prompt[at] = 1 - min(1, prompt[at])
    return tuple(prompt), key


def _allocate(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    known, size = state.once(_known), spec.geometry.block_size
    most = min(spec.geometry.max_tokens or _MOST_TOKENS, _MOST_TOKENS)
    if known and chooser.integer(0, 3):
        # Just at, and just beyond, what might be a hit.
        length = len(chooser.pick(known)[0]) + chooser.pick((1, 1, 0, size, size + 1))
    else:
        # At least one whole block, where there is room for it: less can never be found again.
        blocks = min(chooser.pick((1, 2, 2, 3)), spec.available(state) + chooser.pick((0, 0, 0, 1)))
        near = [n for n in (blocks * size, blocks * size - size + 1) if 0 <= n <= most]
        length = chooser.integer(0, min(most, 2 * size), near=near * (2 * size))
    if spec.contract.misuse == "callers_duty":
        length = min(length, most)
    tokens, key = _prompt(state, chooser, min(length, most + 1))
    if not known:
        key = chooser.pick(KEYS)
    return AllocatePrompt(chooser.pick(new_ids(state)), tokens, key)


def _can_hit(state: State, spec: "Specification") -> bool:
    return bool(facts_of(state).published) and room_for_another(state, spec)


def _hit(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """What is published, and one token or one block more: a hit, whoever has the blocks now."""
    contents = chooser.pick(tuple(facts_of(state).published.values()))
    more = chooser.pick((1, 1, spec.geometry.block_size))
    most = spec.geometry.max_tokens or _MOST_TOKENS
    tokens = (*contents.tokens, *(chooser.integer(0, 1) for _ in range(more)))[:most]
    return AllocatePrompt(chooser.pick(new_ids(state)), tokens, contents.key)


def _can_press(state: State, spec: "Specification") -> bool:
    return bool(state.at().idle) and room_for_another(state, spec)


def _press(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """A new prompt for which one or two cached blocks must be given up, or all that is free."""
    size, free = spec.geometry.block_size, spec.available(state)
    most = min(spec.geometry.max_tokens or _MOST_TOKENS, _MOST_TOKENS)
    idle = len(state.at().idle)
    uncached = free - idle
    # Which are given up first does not show where all are.
    few = uncached + min(2, max(1, idle - 1))
    blocks = chooser.pick((*[uncached + 1] * 3, few, few, free))
    length = min(min(free, blocks) * size - chooser.pick((0, 0, 1)), most)
    tokens = (2, *(chooser.integer(0, 1) for _ in range(length - 1)))[:length]
    return AllocatePrompt(chooser.pick(new_ids(state)), tokens)


def _append(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    authors = facts_of(state).authors
    known = [s for s in live(state) if len(authors[s].tokens) == state.sequences[s].length]
    seq = chooser.pick((*live(state), *known * 3))
    sequence, author = state.sequences[seq], authors[seq]
    bounds = [sequence.limit, spec.geometry.max_tokens, sequence.length + _MOST_TOKENS]
    count = length_near_boundary(spec, state, chooser, sequence.length, bounds)
    go_on = [
        tokens[len(author.tokens) :]
        for tokens, key in state.once(_known)
        if tokens[: len(author.tokens)] == author.tokens and _same(key, author.key)
    ]
    follow = chooser.pick((*go_on, ()))[:count]
    more = (chooser.integer(0, 1) for _ in range(count - len(follow)))
    return AppendTokens(seq, (*follow, *more))


def _unmarked(state: State) -> list[int]:
    """Those on the device with unmarked slots, also where there is nothing to publish."""
    authors = facts_of(state).authors
    return [s for s in live(state) if authors[s].mark < state.sequences[s].length]


def _publishing(state: State, spec: "Specification") -> list[int]:
    """Those that would publish a block if they were marked now."""
    authors, size = facts_of(state).authors, spec.geometry.block_size
    return [
        s for s in state.once(_unmarked) if authors[s].mark // size < len(authors[s].tokens) // size
    ]


def _can_mark(state: State, spec: "Specification") -> bool:
    return bool(state.once(_unmarked))


def _can_publish(state: State, spec: "Specification") -> bool:
    return bool(state.once(_publishing, spec))


def _publish(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick(state.once(_publishing, spec))
    length, size = state.sequences[seq].length, spec.geometry.block_size
    whole = length // size * size
    return MarkWritten(seq, chooser.pick((length, length, length, whole, max(0, whole - 1))))


def _written_unpublished(state: State, spec: "Specification") -> list[int]:
    """Those that have written what they would publish, as after they were swapped in."""
    sequences = state.sequences
    return [s for s in state.once(_publishing, spec) if sequences[s].written == sequences[s].length]


def _can_fork_first(state: State, spec: "Specification") -> bool:
    can = spec.claims("sharing") and room_for_another(state, spec)
    return can and bool(state.once(_written_unpublished, spec))


def _fork_first(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """A fork of what is not published yet: either side may be the one that does it."""
    parent = chooser.pick(state.once(_written_unpublished, spec))
    return spec.operation(call("fork", parent=parent, child=chooser.pick(new_ids(state))))


def _outgrowing(state: State, spec: "Specification") -> dict[int, int]:
    """By how many tokens a sequence grows towards where its window leaves an unpublished block.

    One more token lets go of what nobody sees any more; where there is nothing yet, a sequence
    becomes longer first, as long as there are blocks for that.
    """
    size, window = spec.geometry.block_size, spec.geometry.window
    found: dict[int, int] = {}
    for seq in state.once(_publishing, spec) if window else ():
        sequence, place = state.sequences[seq], state.places[0]
        seen = (facts_of(state).authors[seq].mark // size + 1) * size + (window or 0) - 1
        count, length = max(1, seen - sequence.length), sequence.length
        bounds = [b - length for b in (sequence.limit, spec.geometry.max_tokens) if b is not None]
        if count <= min(bounds, default=count) and count <= fit(state, spec, length, place):
            found[seq] = count
    return found


def _can_outgrow(state: State, spec: "Specification") -> bool:
    return bool(state.once(_outgrowing, spec))


def _outgrow(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """What is written there has gone by the time that somebody says so."""
    counts = state.once(_outgrowing, spec)
    seq = chooser.pick(tuple(counts))
    return AppendTokens(seq, tuple(chooser.integer(0, 1) for _ in range(counts[seq])))


def _mark(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick((*live(state), *state.once(_unmarked)))
    length, mark = state.sequences[seq].length, facts_of(state).authors[seq].mark
    near = [n for n in (length, mark + 1, mark) if n <= length]
    return MarkWritten(seq, chooser.integer(0, length, near=near))


def _worth_asking(state: State, spec: "Specification") -> bool:
    return bool(state.once(_known))


def _ask(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    tokens = chooser.pick(state.once(_known))[0]
    longer = len(tokens) + chooser.pick((0, 0, 1, spec.geometry.block_size))
    return Lookup(*_prompt(state, chooser, chooser.pick((len(tokens), longer))))


def _published(state: State) -> list[int]:
    """Those with published blocks, which stay cached when they end."""
    published = facts_of(state).published
    return [s for s in live(state) if any(block in published for block in state.table(s))]


def _can_cut(state: State, spec: "Specification") -> bool:
    # A window could forbid it.
    plain = spec.claims("rollback") and spec.geometry.window is None
    return plain and bool(state.once(_published))


def _cut(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """Into a published block, or back to where one begins: what is in it may be written over."""
    seq = chooser.pick(state.once(_published))
    length, size = state.sequences[seq].length, spec.geometry.block_size
    published = facts_of(state).published
    last = max(i for i, block in enumerate(state.table(seq)) if block in published)
    at = chooser.pick((last * size + size - 1, last * size + 1, last * size, last * size + size))
    return spec.operation(call("truncate", seq=seq, num_tokens=min(length, at)))


def _can_retire(state: State, spec: "Specification") -> bool:
    return bool(state.once(_published))


def _retire(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return spec.operation(call("free", seq=chooser.pick(state.once(_published))))


def _reopened(state: State, spec: "Specification") -> list[int]:
    """Those that were cut into a published block, and whose tokens are all known."""
    facts, size = facts_of(state), spec.geometry.block_size
    return [
        s
        for s in live(state)
        if state.sequences[s].length % size
        and state.last_block(s) in facts.published
        and len(facts.authors[s].tokens) == state.sequences[s].length
        and state.sequences[s].limit is None
        and spec.geometry.max_tokens is None
    ]


def _can_reopen(state: State, spec: "Specification") -> bool:
    return bool(state.once(_reopened, spec))


def _go_on(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """To the end of the block, with other tokens or the same."""
    seq = chooser.pick(state.once(_reopened, spec))
    missing = -state.sequences[seq].length % spec.geometry.block_size
    return AppendTokens(seq, tuple(chooser.integer(0, 1) for _ in range(missing)))


def _something_to_forget(state: State, spec: "Specification") -> bool:
    """What is published, or what somebody has who is not here to be told."""
    facts = facts_of(state)
    away = (seq for seq, sequence in state.sequences.items() if not sequence.resident)
    return bool(facts.published) or any(facts.authors[seq].tokens for seq in away)


def _reset(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return ResetCache()


def wrong(state: State, spec: "Specification") -> list[Operation]:
    """Unknown ids, an id in use, marks that are none, lengths beyond their bounds."""
    unknown = new_ids(state)[0]
    calls: list[Operation] = [AppendTokens(unknown, (0,)), MarkWritten(unknown, 0)]
    for seq in live(state)[-1:]:
        length, most = state.sequences[seq].length, spec.geometry.max_tokens
        calls += [AllocatePrompt(seq, (0,)), MarkWritten(seq, length + 1)]
        calls += [MarkWritten(seq, odd) for odd in (-1, 1.5, None)]
        if most is not None and most <= _MOST_TOKENS:
            calls += [AppendTokens(seq, (0,) * (most - length + 1))]
    return calls


def every(state: State, spec: "Specification", ids: Sequence[int]) -> Iterator[Operation]:
    """Every prompt, and every text to go on with, of two tokens and under two keys; every mark."""
    most = longest(spec)
    texts = {n: tuple(product(LETTERS, repeat=n)) for n in range(most + 1)}
    prompts = [(text, key) for n in texts for text in texts[n] for key in KEYS[:2]]
    for seq in ids:
        yield from (AllocatePrompt(seq, *prompt) for prompt in prompts)
    yield from (Lookup(*prompt) for prompt in prompts)
    for seq, sequence in state.sequences.items():
        for n in range(most - sequence.length + 1):
            yield from (AppendTokens(seq, text) for text in texts[n])
        yield from (MarkWritten(seq, tokens) for tokens in range(sequence.length + 1))
    yield ResetCache()


PROPOSALS = (
    Proposal("allocate_prompt", room_for_another, _allocate, weight=5),
    Proposal("hit", _can_hit, _hit, weight=4),
    Proposal("press", _can_press, _press, weight=8),
    Proposal("append_tokens", some_live, _append, weight=2),
    Proposal("mark_written", _can_mark, _mark),
    Proposal("publish", _can_publish, _publish, urgent=True),
    Proposal("fork_first", _can_fork_first, _fork_first, weight=4),
    Proposal("outgrow", _can_outgrow, _outgrow, urgent=True),
    Proposal("lookup", _worth_asking, _ask),
    Proposal("retire", _can_retire, _retire, weight=3),
    Proposal("cut_published", _can_cut, _cut),
    Proposal("go_on", _can_reopen, _go_on, weight=3),
    Proposal("reset_prefix_cache", _something_to_forget, _reset),
)
