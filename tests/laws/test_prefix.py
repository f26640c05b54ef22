"""The prefix cache in small scopes: what is found, what must be, and what may be given up."""

import pytest
from attrs import evolve
from exploring import accepted_choices
from faults import bites_in_its_witness, first_of_its_own
from scopes import RandomChooser, allocate, append, begin, free, reached, scope

from kvimpls.reference import Reference
from kvspec import Contract, check_allocator
from kvspec.kernel.outcome import Answer, Asked, Observation, Outcome
from kvspec.kernel.script import call
from kvspec.kernel.state import table_of
from kvspec.rooms import LAWS
from kvspec.rooms.prefix.facts import facts_of
from kvspec.rooms.prefix.hits import found
from kvspec.rooms.prefix.identity import chain, key_name, marks
from kvspec.rooms.prefix.operations import Lookup

CAPABILITIES = ("core", "sharing", "prefix", "lease")


def small(num_blocks=4, **fields):
    """4 blocks of 2 tokens, under the strict contract but for the fields."""
    return scope(num_blocks, 2, capabilities=CAPABILITIES, **fields)


def prompt(seq, *tokens, key=None):
    """`allocate_prompt(seq, tokens, key)`."""
    return call("allocate_prompt", seq=seq, tokens=tokens, key=key)


def mark(seq, num_tokens):
    """`mark_written(seq, num_tokens)`."""
    return call("mark_written", seq=seq, num_tokens=num_tokens)


def lookup(*tokens, key=None):
    """`lookup(tokens, key)`."""
    return call("lookup", tokens=tokens, key=key)


def more(seq, *tokens):
    """`append_tokens(seq, tokens)`."""
    return call("append_tokens", seq=seq, tokens=tokens)


RESET = call("reset_prefix_cache")
PUBLISHED = (prompt(0, 0, 1, 0, 1, 0), mark(0, 5))
"""Blocks 0 and 1 of A are published, and block 2 has room for one more token."""

IDLE = (*PUBLISHED, free(0))
"""Blocks 0 and 1 are cached, and nobody uses them."""


def step_of(spec, state, one, value="", table=None, asked=()):
    """The step in which `one` is answered so, everything else being right."""
    operation = spec.operation(one)
    right = next(spec.choices(state, operation))
    seen = right.observation
    if table is not None:
        seen = evolve(seen, tables={**seen.tables, table_of(operation.touched[0]): table})
    told = [Asked(spec.operation(query), Answer("done", value=number)) for query, number in asked]
    seen = evolve(seen, asked=tuple(told))
    answer = evolve(right.answer, value=value or right.answer.value)
    step = spec.believe(state, operation, Outcome(answer, seen))
    # What is free follows from the tables that were shown.
    seen = evolve(seen, free={p: spec.free_counts(step.after, p)[-1] for p in seen.free})
    return spec.believe(state, operation, Outcome(answer, seen))


def laws(spec, state, one, **answer):
    """The laws that are broken when `one` is answered so."""
    return [breach.law for breach in spec.judge(step_of(spec, state, one, **answer))]


# ------------------------------------------------------------------------------ identity


def test_keys_of_different_types_are_different_keys():
    """Also where Python finds them equal, or where one is the text of another."""
    keys = [None, 0, 0.0, False, "0", "None", ("0",), (0,), ((0,),), ("0", "0"), ""]
    assert len({key_name(key) for key in keys}) == len(keys)


def test_contents_are_the_whole_chain():
    """Equal blocks after different tokens, or under another key, are different contents."""
    (_, one), (_, other) = chain((0, 0, 1, 1), None, 2), chain((0, 1, 1, 1), None, 2)
    assert one != other
    assert next(chain((0, 0), 0, 2)) != next(chain((0, 0), False, 2))


def test_marks_tell_every_short_prompt_apart():
    """What cells carry for tokens in their context differs for all prompts of 8 bits and 3 keys."""
    found_ = [
        number
        for key in (None, "0", 0)
        for length in range(1, 9)
        for bits in range(2**length)
        for number in marks(tuple(bits >> i & 1 for i in range(length)), key_name(key))[-1:]
    ]
    assert len(set(found_)) == len(found_) == 3 * (2**9 - 2)


# ------------------------------------------------------------------------------ must and may


def answers(spec, state, *tokens, key=None):
    """What a lookup must and may find."""
    both = found(state, spec, tokens, key)
    return both.must, both.may


def test_only_marked_full_blocks_are_found():
    """Neither what was allocated nor what was marked inside a block is to be found."""
    spec = small()
    state = reached(spec, prompt(0, 0, 1, 0, 1, 0))
    assert answers(spec, state, 0, 1, 0, 1) == (0, 0)
    assert answers(spec, reached(spec, prompt(0, 0, 1, 0, 1, 0), mark(0, 3)), 0, 1, 0, 1) == (2, 2)
    assert answers(spec, reached(spec, *PUBLISHED), 0, 1, 0, 1, 0, 1) == (4, 4)


def test_what_was_freed_before_it_was_marked_is_never_found():
    """An abort before the write publishes nothing."""
    spec = small()
    assert answers(spec, reached(spec, prompt(0, 0, 1, 0), free(0)), 0, 1) == (0, 0)


def test_tokens_that_the_caller_did_not_tell_are_never_found():
    """A plain append makes all that follows unknown."""
    spec = small()
    state = reached(spec, prompt(0, 0, 1), append(0, 2), more(0, 0, 1), mark(0, 6))
    assert answers(spec, state, 0, 1) == (2, 2)
    assert {contents.tokens for contents in facts_of(state).published.values()} == {(0, 1)}


def test_a_fork_publishes_as_its_parent_would():
    """The child has the parent's tokens, key and mark."""
    spec = small(6)
    state = reached(spec, prompt(0, 0, 1, key="k"), mark(0, 2), call("fork", parent=0, child=1))
    state = spec.believe(state, *_first(spec, state, more(1, 1, 1))).after
    state = spec.believe(state, *_first(spec, state, mark(1, 4))).after
    assert answers(spec, state, 0, 1, 1, 1, key="k") == (4, 4)
    assert answers(spec, state, 0, 1, 1, 1) == (0, 0)


def _first(spec, state, one):
    operation = spec.operation(one)
    return operation, next(spec.choices(state, operation))


def test_one_of_two_blocks_with_the_same_contents_is_enough():
    """When one of them is handed out the other may be found, and need not be, until it is."""
    spec = small()
    state = reached(spec, prompt(0, 0, 1), prompt(1, 0, 1), mark(0, 2), mark(1, 2))
    assert answers(spec, state, 0, 1) == (2, 2)
    for one in (free(0), allocate(2, 6)):
        state = spec.believe(state, *_first(spec, state, one)).after
    assert answers(spec, state, 0, 1) == (0, 2)
    operation = spec.operation(lookup(0, 1))
    seen, lost = (
        spec.believe(state, operation, Outcome(Answer("done", value=value))) for value in "20"
    )
    assert spec.judge(seen) == spec.judge(lost) == ()
    assert answers(spec, seen.after, 0, 1) == (2, 2)
    assert answers(spec, lost.after, 0, 1) == (0, 0)


def test_going_on_inside_a_published_block_gives_its_contents_up():
    """The block is about to hold something else; a copy would have kept it."""
    spec = scope(4, 2, capabilities=(*CAPABILITIES, "rollback"))
    truncate = call("truncate", seq=0, num_tokens=1)
    state = reached(spec, prompt(0, 0, 1), mark(0, 2), truncate)
    assert answers(spec, state, 0, 1) == (2, 2)
    operation = spec.operation(more(0, 0))
    after = [spec.believe(state, operation, o).after for o in spec.choices(state, operation)]
    assert {answers(spec, one, 0, 1) for one in after} == {(0, 0), (2, 2)}


def test_a_reset_forgets_all_and_stops_those_that_live():
    """Sequences that were there before publish nothing any more; new ones do."""
    spec = small(6)
    state = reached(spec, *PUBLISHED, RESET)
    assert answers(spec, state, 0, 1, 0, 1) == (0, 0)
    for one in (more(0, 1), mark(0, 6), prompt(1, 1, 1), mark(1, 2)):
        state = spec.believe(state, *_first(spec, state, one)).after
    assert answers(spec, state, 0, 1, 0, 1, 0, 1) == (0, 0)
    assert answers(spec, state, 1, 1) == (2, 2)


def test_a_window_needs_only_the_blocks_that_it_sees():
    """With a window of 2, blocks of 2: the last block of the prefix is enough."""
    spec = scope(6, 2, window=2, capabilities=(*CAPABILITIES, "window"))
    state = reached(spec, prompt(0, 0, 1, 0, 1, 0), mark(0, 4))
    # Block 0 is let go of by the window, and then handed out.
    for one in (more(0, 1, 1), free(0), allocate(1, 2 * 5)):
        state = spec.believe(state, *_first(spec, state, one)).after
    facts = facts_of(state)
    assert [contents.tokens for contents in facts.published.values()] in ([(0, 1)], [(0, 1, 0, 1)])


def test_what_the_window_needs_decides_the_hit():
    """A run that lacks its head is found where the window does not need the head."""
    spec = scope(6, 2, window=2, capabilities=(*CAPABILITIES, "window"))
    state = reached(spec, prompt(0, 0, 1, 0, 1, 0), mark(0, 4))
    facts = facts_of(state)
    head = state.table(0)[0]
    lost = state.with_slice("prefix", facts.losing(head))
    assert answers(spec, lost, 0, 1, 0, 1) == (4, 4)
    assert answers(spec, lost, 0, 1) == (0, 0)
    operation = spec.operation(prompt(1, 0, 1, 0, 1, 1))
    tables = [o.observation.tables[table_of(1)] for o in spec.choices(lost, operation)]
    assert [table[:2] for table in tables] == [(None, state.table(0)[1])]


# ------------------------------------------------------------------------------ needs


def test_hits_that_lie_free_are_needed_once():
    """Two idle hits and two fresh blocks need four of four; with one block less it is refused."""
    spec = small()
    state = reached(spec, *IDLE)
    assert spec.available(state) == 4
    fits, beyond = (
        spec.expect(state, spec.operation(prompt(1, 0, 1, 0, 1, *[1] * n))) for n in (4, 5)
    )
    assert (fits.done, fits.refused) == (True, False)
    assert (beyond.done, beyond.refused) == (False, True)


def test_hits_in_use_need_no_block():
    """A prompt whose blocks others have needs its own last block only."""
    spec = small()
    state = reached(spec, *PUBLISHED)
    expected = spec.expect(state, spec.operation(prompt(1, 0, 1, 0, 1, 1)))
    assert (expected.done, expected.fresh, expected.available) == (True, 1, 1)


def test_a_leased_block_is_not_given_up():
    """While a transfer has it, it is not free, whoever has cached it."""
    spec = small()
    state = reached(spec, *PUBLISHED, begin(0, 0), free(0))
    assert spec.available(state) == 1
    assert spec.free_blocks(state) == (3,)
    assert answers(spec, state, 0, 1, 0, 1) == (4, 4)


# ------------------------------------------------------------------------------ wrong outcomes


WRONG = {
    "found before it was written": (
        (prompt(0, 0, 1, 0),),
        prompt(1, 0, 1, 1),
        {"value": "2", "table": (0, 2)},
        "prefix-sound",
    ),
    "found under another key": (
        (prompt(0, 0, 1, 0, key="0"), mark(0, 3)),
        prompt(1, 0, 1, 1, key=0),
        {"value": "2", "table": (0, 2)},
        "prefix-sound",
    ),
    "found for other tokens before": (
        (prompt(0, 0, 1, 0, 1), mark(0, 4), free(0)),
        prompt(1, 1, 1, 0, 1, 0),
        {"value": "4", "table": (0, 1, 2)},
        "prefix-sound",
    ),
    "the last token found too": (
        PUBLISHED,
        prompt(1, 0, 1, 0, 1),
        {"value": "4", "table": (0, 1)},
        "prefix-sound",
    ),
    "half a block found": (IDLE, prompt(1, 0, 1, 0), {"value": "1"}, "prefix-sound"),
    "the blocks of a hit exchanged": (
        IDLE,
        prompt(1, 0, 1, 0, 1, 0),
        {"value": "4", "table": (1, 0, 2)},
        "prefix-sound",
    ),
    "a hit said, and fresh blocks given": (
        IDLE,
        prompt(1, 0, 1, 0),
        {"value": "2", "table": (2, 3)},
        "prefix-sound",
    ),
    "not found though it is there": (
        IDLE,
        prompt(1, 0, 1, 0),
        {"value": "0", "table": (2, 3)},
        "prefix-complete",
    ),
    "lost by a hit": (
        IDLE,
        prompt(1, 0, 1, 0),
        {"asked": ((lookup(0, 1, 0, 1), "2"),)},
        "prefix-complete",
    ),
    "found after a reset": (PUBLISHED, RESET, {"asked": ((lookup(0, 1), "2"),)}, "prefix-sound"),
    "found after it was handed out": (
        (*PUBLISHED, free(0), allocate(1, 6)),
        allocate(2, 2),
        {"asked": ((lookup(0, 1), "2"),)},
        "prefix-sound",
    ),
    "found after it was written over": (
        (prompt(0, 0, 1), mark(0, 2), call("truncate", seq=0, num_tokens=1)),
        append(0, 1),
        {"asked": ((lookup(0, 1), "2"),)},
        "prefix-sound",
    ),
    "given up though others were free": (
        IDLE,
        allocate(1, 2),
        {"table": (1,)},
        "eviction",
    ),
    "the head given up before the tail": (
        (*IDLE, allocate(1, 4)),
        allocate(2, 2),
        {"table": (0,)},
        "eviction-order",
    ),
    "the younger given up before the older": (
        (
            prompt(0, 0, 0),
            mark(0, 2),
            prompt(1, 1, 1),
            mark(1, 2),
            free(0),
            free(1),
            allocate(2, 4),
        ),
        allocate(3, 2),
        {"table": (1,)},
        "eviction-order",
    ),
    "a block in use taken for another prompt": (
        PUBLISHED,
        prompt(1, 1, 1),
        {"table": (0,)},
        "no-overlap",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_outcome_is_named_by_its_law(case):
    """The first law that is broken is the one that says what went wrong."""
    before, one, answer, law = WRONG[case]
    capabilities = (*CAPABILITIES, "rollback")
    spec = scope(4, 2, capabilities=capabilities, order="lru")
    state = reached(spec, *before)
    assert laws(spec, state, one) == []
    assert laws(spec, state, one, **answer)[:1] == [law]


def wrong(case):
    """The step of a case, in 4 blocks of 2 under a contract that promises the order."""
    before, one, answer, _ = WRONG[case]
    spec = scope(4, 2, capabilities=(*CAPABILITIES, "rollback"), order="lru")
    return step_of(spec, reached(spec, *before), one, **answer)


FAULTS_OF_LAWS = {
    "prefix-sound": lambda: wrong("found under another key"),
    "prefix-complete": lambda: wrong("not found though it is there"),
    "eviction": lambda: wrong("given up though others were free"),
    "eviction-order": lambda: wrong("the head given up before the tail"),
}


@pytest.mark.parametrize("law", FAULTS_OF_LAWS)
def test_each_law_is_the_first_that_its_own_fault_breaks(law):
    """It says what went wrong, and nothing else is wrong with it."""
    first_of_its_own(law, FAULTS_OF_LAWS[law]())


@pytest.mark.parametrize(
    "law", [law for law in LAWS if law.capability == "prefix"], ids=lambda law: law.id
)
def test_each_law_bites_in_its_witness(law):
    """The script of the law breaks nothing and has a step in which the law would see a fault."""
    assert bites_in_its_witness(law, Reference)


RELAXED = {
    "given up though others were free": {"eviction": "any"},
    "the head given up before the tail": {"order": "any"},
    "the last token found too": {"leave_one": False},
    "lost by a hit": {"forgets": True},
}


@pytest.mark.parametrize("case", RELAXED)
def test_a_contract_that_allows_it_is_not_broken(case):
    """Each relaxation takes back the law that the strict contract has about it."""
    before, one, answer, law = WRONG[case]
    spec = small(**{"order": "lru", **RELAXED[case]})
    state = reached(spec, *before)
    assert law not in laws(spec, state, one, **answer)


def test_equal_contents_may_become_one_block_where_the_contract_says_so():
    """Publishing changes the entry to the block that is cached already, and lets go of its own."""
    before = (prompt(0, 0, 1, 0), mark(0, 2), prompt(1, 0, 1))
    for deduplicates, broken in ((True, []), (False, ["no-overlap"])):
        spec = small(deduplicates=deduplicates)
        state = reached(spec, *before)
        assert laws(spec, state, mark(1, 2), table=(0,))[:1] == broken


def test_a_reset_while_something_is_used_is_refused_where_the_contract_says_so():
    """And it succeeds, under the same contract, when nothing is."""
    spec = small(reset_when_used="refused")
    used, unused = reached(spec, *PUBLISHED), reached(spec, *IDLE)
    operation = spec.operation(RESET)
    assert [o.answer.kind for o in spec.choices(used, operation)] == ["refused"]
    assert [o.answer.kind for o in spec.choices(unused, operation)] == ["done"]


class LeavesOutMore(Reference):
    """A hit leaves out what the token after it, the first that looks back, does not see."""

    def _hit(self, tokens, key, most):
        blocks = [
            self._supply.cache.blocks.get(self._contents(tokens, key, index))
            for index in range(most // self._block_size)
        ]
        for count in range(len(blocks), 0, -1):
            outside = self._outside(count * self._block_size + 1)
            if None not in blocks[outside:count]:
                return [None] * outside + blocks[outside:count]
        return []


def test_a_hit_may_leave_out_what_only_its_last_token_sees():
    """Under a window that token is cached; without one left to compute, it might be read."""
    spec = scope(3, 2, capabilities=("core", "window", "prefix"), window=3)
    assert [spec.released_before_a_hit(n) for n in (2, 4, 6)] == [(0, 0), (0, 1), (1, 2)]
    spec = evolve(spec, contract=evolve(spec.contract, leave_one=False))
    assert [spec.released_before_a_hit(n) for n in (2, 4, 6)] == [(0,), (0,), (1,)]
    contract = Contract(capabilities=("core", "window", "prefix"), order="lru")
    report = check_allocator(LeavesOutMore, contract=contract, profile="quick")
    assert report.exit_code == 0, report.trace


def test_who_has_no_tokens_at_a_reset_may_publish_after_it_where_it_is_refused():
    """Nothing of it was computed before; and it need not."""
    for when, most in (("refused", 2), ("epoch", 0)):
        spec = small(reset_when_used=when)
        state = reached(spec, allocate(0, 0), RESET, more(0, 0, 1), mark(0, 2))
        right = found(state, spec, (0, 1), None)
        assert (right.must, right.may) == (0, most)


def test_counts_may_leave_out_what_is_cached():
    """Where the contract says so, cached blocks without a user do not count as free."""
    spec = small(free_counts_cached=False)
    state = reached(spec, *IDLE)
    assert list(spec.free_counts(state)) == [2]
    assert list(small().free_counts(state)) == [4]


# ------------------------------------------------------------------------------ choices


WORLDS = {
    "strict": {},
    "lru": {"order": "lru"},
    "forgets": {"forgets": True},
    "any evicted": {"eviction": "any"},
    "nothing left": {"leave_one": False},
    "refused reset": {"reset_when_used": "refused"},
    "uncounted": {"free_counts_cached": False},
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """No choice of any proposed call breaks a law, and none is listed twice."""
    spec, kinds = small(**WORLDS[world]), set()
    hits = 0
    for seed in range(50):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(50):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            hits += operation.method == "allocate_prompt" and step.answer.number > 0
            kinds.add(step.answer.kind)
            state = step.after
    assert kinds == {"done", "refused", "error"}
    assert hits > 1


def test_standing_queries_ask_for_what_is_known():
    """A full look asks for prompts of live, published and lost contents, and under another key."""
    spec = small()
    asked = list(spec.queries(reached(spec, *PUBLISHED)))
    assert all(isinstance(query, Lookup) for query in asked)
    assert asked[0] == Lookup((0, 1, 0, 1, 0))
    assert key_name(asked[-1].key) != key_name(None)
    assert Lookup((0, 1, 0, 1)) in list(spec.queries(reached(spec, *PUBLISHED, free(0), RESET)))


def test_a_look_that_asked_nothing_says_nothing():
    """What was not looked at is not judged."""
    spec = small()
    state = reached(spec, *PUBLISHED)
    operation = spec.operation(append(0, 1))
    step = spec.believe(state, operation, Outcome(Answer("done"), Observation()))
    assert "prefix-complete" not in [law.id for law in step.relevant]
