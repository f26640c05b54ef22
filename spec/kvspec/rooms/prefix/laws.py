"""The laws of the prefix cache: what is found, what must be, and what may be given up for space."""

from collections.abc import Iterator

from kvspec.contract import Contract
from kvspec.kernel.events import Displaced
from kvspec.kernel.law import Law
from kvspec.kernel.names import blocks_text, entries_text, plural, sequence_name
from kvspec.kernel.perturb import other_asked, other_blocks, other_number, other_table
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms.prefix import witnesses
from kvspec.rooms.prefix.facts import CacheOf, Facts, facts_of, surely_kept
from kvspec.rooms.prefix.hits import Found, found, usable
from kvspec.rooms.prefix.identity import Contents, Tokens, chain, key_name, marks
from kvspec.rooms.prefix.operations import AllocatePrompt, Lookup

# ------------------------------------------------------------------------------ what is found


def _answers(step: Step) -> tuple[tuple[str, int, Found, Tokens, object], ...]:
    """Every answer about what is cached, for the laws that are about it."""
    return step.once(_all_answers)


def _all_answers(step: Step) -> tuple[tuple[str, int, Found, Tokens, object], ...]:
    return tuple(_each_answer(step))


def _each_answer(step: Step) -> Iterator[tuple[str, int, Found, Tokens, object]]:
    """Every answer about what is cached: what said it, what it said, and what it had to say."""
    spec, operation = step.spec, step.operation
    if step.done and isinstance(operation, AllocatePrompt):
        most = usable(spec, len(operation.tokens))
        right = found(step.before, spec, operation.tokens, operation.key, most)
        yield "the call", step.answer.number, right, operation.tokens, operation.key
    if step.done and isinstance(operation, Lookup):
        right = found(step.before, spec, operation.tokens, operation.key)
        yield "the lookup", step.answer.number, right, operation.tokens, operation.key
    for asked in step.seen.asked:
        query = asked.query
        if isinstance(query, Lookup):
            right = found(step.after, spec, query.tokens, query.key)
            yield "a lookup after it", asked.answer.number, right, query.tokens, query.key


def _answered(step: Step) -> bool:
    if step.done and isinstance(step.operation, AllocatePrompt | Lookup):
        return True
    if step.spec.contract.deduplicates and step.changes:
        return True
    return any(isinstance(asked.query, Lookup) for asked in step.seen.asked)


def _text(tokens: Tokens, key: object) -> str:
    under = "" if key is None else f" under the key {key_name(key)}"
    return f"{entries_text(tokens)}{under}"


def _sound(step: Step) -> str | None:
    size = step.spec.geometry.block_size
    for who, number, right, tokens, key in _answers(step):
        about = f"{who} finds {plural(number, 'token')} of {_text(tokens, key)} cached"
        if number % size or number > len(tokens):
            return f"{about}, which is no number of whole blocks of {size} among them."
        if number > right.may:
            return f"{about}, and at most {right.may} may be: {_missing(step, tokens, key, right)}."
    operation = step.operation
    if step.done and isinstance(operation, AllocatePrompt):
        return _adopted(step, operation)
    return _joined(step)


def _joined(step: Step) -> str | None:
    """Where an entry has become another block than one of equal contents."""
    facts = facts_of(step.before)
    for change in step.changes:
        if (change.table, change.index) in step.adopted and change.seq in facts.authors:
            author, size = facts.authors[change.seq], step.spec.geometry.block_size
            own = list(chain(author.tokens, author.key, size))[change.index : change.index + 1]
            if [facts.published.get(change.after)] != own:
                return (
                    f"entry {change.index} of {sequence_name(change.seq)} became block "
                    f"{change.after}, which was not published for the same tokens and key."
                )
    return None


def _missing(step: Step, tokens: Tokens, key: object, right: Found) -> str:
    """Why the answer may not be longer."""
    spec, most = step.spec, usable(step.spec, len(tokens))
    if isinstance(step.operation, AllocatePrompt) and right.may == most < len(tokens):
        return "of a prompt the last token is left to compute, and a hit is of whole blocks"
    size = spec.geometry.block_size
    for contents in chain(tokens, key, size):
        if len(contents.tokens) > right.may:
            what = f"positions {len(contents.tokens) - size} to {len(contents.tokens) - 1}"
            return f"no block is published for {what} under that key and after those tokens"
    return "there are no more whole blocks"


def _adopted(step: Step, operation: AllocatePrompt) -> str | None:
    """Where the entries of a hit have not the contents that they were found for."""
    size, number = step.spec.geometry.block_size, step.answer.number
    gone, *others = step.spec.released_before_a_hit(number)
    table, known = step.after.table(operation.seq), marks(operation.tokens, key_name(operation.key))
    contents = facts_of(step.before).published
    name = sequence_name(operation.seq)
    for i, wanted in enumerate(chain(operation.tokens[:number], operation.key, size)):
        block = table[i] if i < len(table) else None
        if i < gone:
            if block is not None:
                return (
                    f"entry {i} of {name} lies wholly before the window of the {number} tokens "
                    f"that were cached, and must be released; it is block {block}."
                )
        elif block is None and i < max(others, default=0):
            continue
        elif block is None or contents.get(block) != wanted:
            return (
                f"the first {plural(number, 'token')} of {name} were cached, but block {block} "
                f"at entry {i} was not published for them."
            )
        else:
            cells = step.after.sequences[operation.seq].cells[i * size : (i + 1) * size]
            for position, cell in enumerate(cells, start=i * size):
                if cell is None or (cell.position, cell.token) != (position, known[position]):
                    return (
                        f"block {block} at entry {i} of {name} does not hold at position "
                        f"{position} what was computed from those tokens under that key."
                    )
    return None


def _complete(step: Step) -> str | None:
    for who, number, right, tokens, key in _answers(step):
        if number < right.must:
            facts = facts_of(step.before if who == "the call" else step.after)
            blocks = _blocks(facts, tokens[: right.must], key, step.spec.geometry.block_size)
            return (
                f"{who} finds {plural(number, 'token')} of {_text(tokens, key)} cached, and "
                f"{right.must} are: they were published in {blocks_text(blocks)}, and nothing "
                "has taken their place."
            )
    return None


def _blocks(facts: Facts, tokens: Tokens, key: object, size: int) -> list[int]:
    return [b for contents in chain(tokens, key, size) for b in facts.blocks_of(contents)[:1]]


def _forgets(contract: Contract) -> bool:
    """Nothing need ever be found."""
    return contract.forgets


# ------------------------------------------------------------------------------ what is given up


def _idle(state: State) -> frozenset[int]:
    """The blocks that must be found and that nobody uses."""
    return state.at().idle.intersection(state.holds.get(CacheOf(), ()))


def _handed_out(step: Step) -> int:
    return sum(table.place.tier == "device" for table, _, _ in step.taken)


def _evicted(step: Step) -> list[int]:
    """The blocks of contents that had to be found, and that were given up or taken as a whole.

    One block of each; not those that somebody still uses, which are for other laws.
    """
    before, left = facts_of(step.before), set(facts_of(step.after).published.values())
    gone = {block for table, _, block in step.taken if table.place.tier == "device"}
    gone.update(event.block for event in step.events if isinstance(event, Displaced))
    given_up: dict[Contents, int] = {}
    for block in sorted(gone.intersection(before.published)):
        contents = before.published[block]
        if contents not in left and surely_kept(contents, before, step.spec):
            alike = before.blocks_of(contents)
            if all(other in gone and _unused(step, other) for other in alike):
                given_up.setdefault(contents, block)
    return sorted(given_up.values())


def _unused(step: Step, block: int) -> bool:
    """Whether nobody had a block when it was taken: also who had it let go of it in this step."""
    at, after = step.before.at(), step.after.holds
    return block not in at.pins and not any(
        was == block == now
        for user in at.users.get(block, ())
        for was, now in zip(step.before.entries(user), after.get(user, ()), strict=False)
    )


def _takes_from_cache(step: Step) -> bool:
    takes = step.done and bool(step.before.at().keeps) and _handed_out(step) > 0
    return takes and not _not_least(step.spec.contract)


def _uncached(step: Step) -> int:
    """How many blocks could be handed out in this step without giving up cached contents."""
    idle = step.before.at().idle
    free = [block for block in step.spec.free_blocks(step.before) if block not in idle]
    if len(step.operation.touched) > 1:
        return len(free)  # in a batch what is let go of at a later turn comes too late for this one
    # What the window let go of in this very call is to be had too.
    published = facts_of(step.before).published
    held, still = step.before.at(), step.after.at()
    taken = {block for _, _, block in step.taken}
    let_go = [
        block
        for block in held.users
        if (block not in still.users or block in taken)
        and block not in step.moves  # the others moved to the copy, and nobody let go of it
        and block not in held.pins
        and block not in published
        and step.operation.added(held.users[block][0].seq)
    ]
    return len(free) + len(let_go)


def _eviction(step: Step) -> str | None:
    evicted, taken, uncached = _evicted(step), _handed_out(step), _uncached(step)
    if step.spec.evicts_explicitly and evicted:
        return (
            f"the cached contents of {blocks_text(evicted)} were given up for "
            f"{plural(taken, 'block')} that the call takes, and under this contract what takes "
            "blocks gives up none."
        )
    allowed = max(0, taken - uncached)
    if len(evicted) <= allowed:
        return None
    return (
        f"the call takes {plural(taken, 'block')}, and {plural(uncached, 'other free block')} "
        f"could be had, so the cached contents of {allowed} may be given up at most; those of "
        f"{blocks_text(evicted)} were."
    )


def _not_least(contract: Contract) -> bool:
    """Which and how many are given up is not promised."""
    return contract.eviction == "any" or contract.forgets


def _evicts(step: Step) -> bool:
    return not _not_lru(step.spec.contract) and step.done and bool(_evicted(step))


def _order(step: Step) -> str | None:
    # What was taken for its contents was not there to be given up.
    facts, kept = facts_of(step.before), _idle(step.before) & _idle(step.after)
    for block in _evicted(step):
        if len(facts.blocks_of(facts.published[block])) > 1:
            continue  # which of them was the one that was cached is not seen
        for other in sorted(kept):
            why = _should_go_first(facts, other, block)
            if why:
                return (
                    f"the cached contents of block {block} were given up and those of block "
                    f"{other} were kept, {why}."
                )
    return None


def _should_go_first(facts: Facts, block: int, other: int) -> str | None:
    """Why `block` must be given up before `other`, if it must."""
    since, others = facts.since(block), facts.since(other)
    if since[0] < others[0]:
        when = "this one" if other not in facts.stamps else f"step {others[0]}"
        return f"which has had no user since step {since[0]}, and the other since {when}"
    ours, theirs = facts.published[block], facts.published[other]
    if since == others and ours != theirs and ours.follows(theirs):
        return "which is further down the same chain, and was let go of together with it"
    return None


def _not_lru(contract: Contract) -> bool:
    """The order is not promised."""
    return contract.order != "lru" or contract.forgets


LAWS = (
    Law(
        "prefix-sound",
        "prefix",
        "What is found in the cache was published, with just those tokens under that key, and is "
        "still there.",
        "GeeeekExplorer/nano-vllm#163, vllm-project/vllm#43569, vllm-project/vllm#44701",
        _answered,
        _sound,
        (other_number, other_asked, other_table),
        witnesses.found_again,
    ),
    Law(
        "prefix-complete",
        "prefix",
        "What was published and has not been given up is found.",
        "1CatAI/1Cat-vLLM#205, vllm-project/vllm#18668, ROCm/ATOM#902",
        _answered,
        _complete,
        (other_number, other_asked),
        witnesses.found_again,
        idle=_forgets,
    ),
    Law(
        "eviction",
        "prefix",
        "No more cached contents are given up than blocks are short; none, where eviction is "
        "explicit.",
        "ROCm/ATOM#902, jjang-ai/vmlx#68",
        _takes_from_cache,
        _eviction,
        (other_table,),
        witnesses.evicted,
        idle=_not_least,
    ),
    Law(
        "eviction-order",
        "prefix",
        "What has been without a user for longest is given up first, and the tail of a sequence "
        "before its head.",
        "llm-d/llm-d-inference-sim#709, vllm-project/vllm#51787",
        _evicts,
        _order,
        (other_table, other_blocks),
        witnesses.evicted,
        idle=_not_lru,
    ),
)
