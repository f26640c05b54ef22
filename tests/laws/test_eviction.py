"""Eviction on request in small scopes: how many, which, and what it makes room for."""

import pytest
from attrs import evolve
from exploring import accepted_choices
from faults import first_of_its_own, rehearsed
from scopes import RandomChooser, allocate, begin, can_allocate, free, reached, scope

from kvimpls.reference import Reference
from kvimpls.torch_paged import TorchPaged
from kvimpls.unusual import EvictsOnRequest
from kvspec import Geometry, InvalidLength, OutOfBlocks, check_allocator
from kvspec.driver.target import TargetError, target
from kvspec.kernel.outcome import Answer, Outcome
from kvspec.kernel.script import call

CAPABILITIES = ("core", "admission", "prefix", "eviction", "lease")


def small(num_blocks=4, window=None, more=(), **fields):
    """4 blocks of 2 tokens, under the strict contract but for the fields."""
    return scope(num_blocks, 2, window=window, capabilities=(*CAPABILITIES, *more), **fields)


def prompt(seq, *tokens):
    """`allocate_prompt(seq, tokens)`."""
    return call("allocate_prompt", seq=seq, tokens=tokens)


def mark(seq, num_tokens):
    """`mark_written(seq, num_tokens)`."""
    return call("mark_written", seq=seq, num_tokens=num_tokens)


def evict(num_blocks):
    """`evict(num_blocks)`."""
    return call("evict", num_blocks=num_blocks)


def lookup(*tokens):
    """`lookup(tokens)`."""
    return call("lookup", tokens=tokens)


PUBLISHED = (prompt(0, 0, 1, 0, 1, 0), mark(0, 5))
"""Blocks 0 and 1 of A are published, and block 2 is not full."""

IDLE = (*PUBLISHED, free(0))
"""Blocks 0 and 1 are cached, and nobody uses them."""


def step_of(spec, state, one, value, kind="done"):
    """The step in which `one` is answered so; what is free follows from that."""
    operation = spec.operation(one)
    outcome = Outcome(Answer(kind, value=value), spec.observed(state))
    step = spec.believe(state, operation, outcome)
    seen = evolve(outcome.observation, free=spec.observed(step.after).free)
    return spec.believe(state, operation, evolve(outcome, observation=seen))


def laws(spec, state, one, value):
    """The laws that are broken when `one` is answered so."""
    return [breach.law for breach in spec.judge(step_of(spec, state, one, value))]


# ------------------------------------------------------------------------------ how many, which

WRONG = {
    "none": (IDLE, evict(1), ""),
    "too many": (IDLE, evict(1), "0 1"),
    "not all": (IDLE, evict(5), "1"),
    "one that is used": ((*PUBLISHED, prompt(1, 0, 1, 0), free(0)), evict(2), "0 1"),
    "one in flight": ((*PUBLISHED, begin(0, 0), free(0)), evict(1), "1"),
    "one without contents": (IDLE, evict(1), "3"),
}
"""States, calls and the wrong answers to them."""


@pytest.mark.parametrize("case", WRONG)
def test_evict_gives_up_just_what_it_may_and_must(case):
    """Any other number breaks the law, and so does any block that is not cached and unused."""
    before, one, value = WRONG[case]
    assert laws(small(), reached(small(), *before), one, value)[0] == "evict"


@pytest.mark.parametrize("value", ["0", "1"])
def test_any_of_them_may_go_unless_an_order_is_promised(value):
    """With `lru` the tail goes before the head."""
    assert laws(small(), reached(small(), *IDLE), evict(1), value) == []
    lru = small(order="lru")
    broken = laws(lru, reached(lru, *IDLE), evict(1), value)
    assert broken == ([] if value == "1" else ["eviction-order"])


def test_what_was_evicted_is_not_found_and_the_rest_is():
    """The cache has lost just what the answer names."""
    spec = small()
    state = step_of(spec, reached(spec, *IDLE), evict(1), "1").after
    assert [laws(spec, state, lookup(0, 1, 0, 1), found) for found in ("0", "2", "4")] == [
        ["prefix-complete"],
        [],
        ["prefix-sound"],
    ]


def test_of_equal_contents_in_two_blocks_one_must_be_there():
    """The cache may know only one of them: so perhaps there is less to give up, and not more."""
    spec = small()
    before = (prompt(0, 0, 1), prompt(1, 0, 1), mark(0, 2), mark(1, 2), free(0), free(1))
    state = reached(spec, *before)
    assert (len(state.at().idle), state.at().least_kept) == (2, 1)
    assert [laws(spec, state, evict(2), value) for value in ("0 1", "0", "", "0 1 2")] == [
        [],
        [],
        ["evict"],
        ["evict"],
    ]


def test_a_cache_that_forgets_evicts_as_many_as_it_likes():
    """But nothing that somebody uses."""
    spec = small(forgets=True)
    state = reached(spec, *IDLE)
    assert [laws(spec, state, evict(1), value) for value in ("", "0", "0 1", "0 3")] == [
        [],
        [],
        [],
        ["evict"],
    ]


# ------------------------------------------------------------------------------ explicit eviction


def test_where_eviction_is_explicit_what_takes_blocks_gives_up_none():
    """It is refused as if the cached blocks were in use, and `can_allocate` agrees with it."""
    spec = small(eviction="explicit")
    state = reached(spec, *IDLE)
    assert spec.available(state) == 2
    for tokens, fits in ((4, True), (5, False)):
        kinds = [o.answer.kind for o in spec.choices(state, spec.operation(allocate(1, tokens)))]
        asked = [o.answer.value for o in spec.choices(state, spec.operation(can_allocate(tokens)))]
        assert (kinds, asked) == ((["done"], ["OK"]) if fits else (["refused"], ["LATER"]))
    after = step_of(spec, state, evict(1), "1").after
    assert spec.available(after) == 3
    assert list(spec.free_counts(state)) == list(spec.free_counts(after)) == [4]


def test_a_hit_takes_none_of_the_blocks_that_may_be_taken():
    """Its own blocks are not among them, so that it fits where the same prompt anew would not."""
    spec = small(eviction="explicit")
    state = reached(spec, *IDLE, allocate(1, 2))
    for wanted, fits in ((prompt(2, 0, 1, 0, 1, 1), True), (prompt(2, 1, 1, 0, 1, 1), False)):
        outcomes = list(spec.choices(state, spec.operation(wanted)))
        assert [o.answer.kind for o in outcomes] == ["done" if fits else "refused"]


def test_what_is_perhaps_cached_may_be_refused_or_taken():
    """Of two blocks with equal contents the allocator may keep one or both."""
    spec = small(2, eviction="explicit")
    before = (prompt(0, 0, 1), prompt(1, 0, 1), mark(0, 2), mark(1, 2), free(0), free(1))
    state = reached(spec, *before)
    outcomes = list(spec.choices(state, spec.operation(allocate(2, 1))))
    assert {o.answer.kind for o in outcomes} == {"done", "refused"}
    asked = [o.answer.value for o in spec.choices(state, spec.operation(can_allocate(1)))]
    assert asked == ["OK", "LATER"]


def test_but_not_both_of_them():
    """One is cached, so that of two blocks only one can be had; without evict it stays so."""
    spec = small(2, eviction="explicit")
    before = (prompt(0, 0, 1), prompt(1, 0, 1), mark(0, 2), mark(1, 2), free(0), free(1))
    state = reached(spec, *before)
    outcomes = list(spec.choices(state, spec.operation(allocate(2, 3))))
    assert [o.answer.kind for o in outcomes] == ["refused"]
    assert list(spec.free_counts(state)) == [2]
    uncounted = small(2, eviction="explicit", free_counts_cached=False)
    assert list(uncounted.free_counts(reached(uncounted, *before))) == [0, 1]


def test_a_published_block_that_a_window_leaves_is_not_taken_by_the_same_append():
    """It stays cached, so that the append needs another; one that was not published it may take."""
    spec = small(2, window=2, eviction="explicit", more=("window",))
    more = call("append_tokens", seq=0, tokens=(0,))
    for marked, kind in ((4, "refused"), (0, "done")):
        state = reached(spec, prompt(0, 0, 1, 0, 1), mark(0, marked))
        assert [o.answer.kind for o in spec.choices(state, spec.operation(more))] == [kind]


class EvictsAnyway(EvictsOnRequest):
    """Gives up cached contents for whoever needs a block, whatever its contract says."""

    def _to_be_had(self):
        return Reference._to_be_had(self)


class TakesWhatItsWindowLeft(Reference):
    """An append takes a published block that it has just let go of, though others are free."""

    _left = ()

    def _slide(self, seq, length):
        was = list(self._supply.idle)
        super()._slide(seq, length)
        self._left = [block for block in self._supply.idle if block not in was]

    def _take_one(self):
        if not self._left:
            return super()._take_one()
        block = self._left.pop()
        self._journal.remove(self._supply.idle, block)
        self._unpublish(block)
        self._count(block, +1)
        return block


class EvictsInUse(Reference):
    """Gives up contents that are in use as well, and says so."""

    def evict(self, num_blocks):
        given_up = super().evict(num_blocks)
        used = [b for b in self._supply.cache.contents if b not in self._supply.idle]
        for block in used[: max(0, num_blocks - len(given_up))]:
            self._unpublish(block)
            given_up.append(block)
        return given_up


class KeepsTheBlock(Reference):
    """What is evicted does not become free."""

    def evict(self, num_blocks):
        given_up = super().evict(num_blocks)
        for block in given_up:
            self._free.remove(block)
        return given_up


class KeepsTheContents(Reference):
    """What is evicted is found all the same."""

    def evict(self, num_blocks):
        return list(self._supply.idle[: int(num_blocks)]) if num_blocks >= 0 else super().evict(-1)


class MostRecentFirst(Reference):
    """Gives up on request what was used last."""

    def evict(self, num_blocks):
        self._supply.idle.reverse()
        try:
            return super().evict(num_blocks)
        finally:
            self._supply.idle.reverse()


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (EvictsAnyway, "eviction"),
        (TakesWhatItsWindowLeft, "eviction"),
        (EvictsInUse, "evict"),
        (KeepsTheBlock, "conservation"),
        (KeepsTheContents, "prefix-sound"),
        (MostRecentFirst, "eviction-order"),
    ],
)
def test_a_fault_of_eviction_is_found_by_the_law_about_it(make, law):
    """In the default profile, at more than one seed."""
    for seed in range(2):
        report = check_allocator(make, seed=seed)
        assert report.trace is not None
        assert report.trace.law == law


def test_eviction_cannot_be_claimed_without_a_prefix_cache():
    """There is nothing to give up."""

    class Evicts(Reference):
        contract = evolve(Reference.contract, capabilities=("core", "eviction"))

    with pytest.raises(TargetError, match="claims eviction, which needs prefix"):
        target(Evicts)


def test_an_order_is_not_promised_where_nothing_is_ever_evicted():
    """With explicit eviction and no `evict` there is only the reset."""
    with pytest.raises(ValueError, match="order lru promises nothing"):
        scope(4, 2, capabilities=("core", "prefix"), eviction="explicit", order="lru")


# ------------------------------------------------------------------------------ one release


@pytest.mark.parametrize("make", [Reference, TorchPaged])
def test_each_turn_of_a_batch_is_a_release(make):
    """What the windows let go of is queued turn by turn, also where the head has the first."""
    spec = target(make).specification(Geometry(8, 1, window=2))
    last = rehearsed(
        spec,
        prompt(0, 0, 1),
        mark(0, 2),
        prompt(1, 0, 0),
        mark(1, 2),
        call("append_tokens", seq=1, tokens=(0,)),
        call("append_batch", seqs=(0, 1), num_tokens=1),
        evict(1),
        make=make,
    )
    assert len(last.answer.blocks) == 1


class CopiesWhatIsPublished(Reference):
    """Who goes on inside a block that it has published gets another one, if there is one."""

    def _to_copy(self, sequence, length):
        shared = super()._to_copy(sequence, length)
        more = [
            index
            for index in self._written(sequence, length)
            if index not in shared and self._cached(sequence.blocks[index])
        ]
        need = len(shared) + len(more) + self._growth(sequence, length)
        return sorted(shared + more) if need <= len(self._free) else shared


def test_what_a_window_lets_go_of_and_a_copy_after_it_are_two_releases():
    """The window's block is the older of the two, and the head of the other."""
    spec = target(CopiesWhatIsPublished).specification(Geometry(8, 2, window=2))
    last = rehearsed(
        spec,
        prompt(0, 0, 1, 0, 1, 0, 1),
        mark(0, 6),
        call("truncate", seq=0, num_tokens=5),
        call("append_tokens", seq=0, tokens=(0,)),
        evict(1),
        make=CopiesWhatIsPublished,
    )
    assert len(last.answer.blocks) == 1


# ------------------------------------------------------------------------------ the allocators


@pytest.mark.parametrize("make", [Reference, TorchPaged])
def test_the_reference_and_torch_evict_the_oldest(make):
    """The tail of what was let go of first; all, if more is asked for; a bad number is an error."""
    pool = make(Geometry(4, 2))
    pool.allocate_prompt(0, [0, 1, 0, 1, 0])
    pool.mark_written(0, 5)
    table = pool.block_table(0)
    assert list(pool.evict(3)) == []
    pool.free(0)
    head, tail, _ = table
    assert (list(pool.evict(0)), list(pool.evict(1))) == ([], [tail])
    assert (pool.lookup([0, 1, 0, 1]), pool.num_free_blocks()) == (2, 4)
    with pytest.raises(InvalidLength):
        pool.evict(-1)
    assert list(pool.evict(9)) == [head]
    assert pool.lookup([0, 1, 0, 1]) == 0


def test_on_request_only():
    """The allocation that was refused succeeds once there is room."""
    pool = EvictsOnRequest(Geometry(2, 2))
    pool.allocate_prompt(0, [0, 1, 0])
    pool.mark_written(0, 3)
    pool.free(0)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1, 3)
    assert pool.evict(1) == [0]
    assert pool.allocate(1, 3) == []


# ------------------------------------------------------------------------------ choices

FAULTS_OF_LAWS = {"evict": lambda: step_of(small(), reached(small(), *IDLE), evict(1), "")}


@pytest.mark.parametrize("law", FAULTS_OF_LAWS)
def test_the_law_is_the_only_one_that_its_own_fault_breaks(law):
    """Nothing is given up that had to be, and nothing else is wrong."""
    first_of_its_own(law, FAULTS_OF_LAWS[law]())


WORLDS = {
    "strict": {},
    "lru": {"order": "lru"},
    "explicit": {"eviction": "explicit"},
    "explicit, lru, uncounted": {
        "eviction": "explicit",
        "order": "lru",
        "free_counts_cached": False,
    },
    "explicit, forgets": {"eviction": "explicit", "forgets": True},
    "explicit, window": {"eviction": "explicit", "window": 3, "more": ("window", "batch")},
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """No choice of any proposed call breaks a law, and none is listed twice."""
    spec, evicted = small(**WORLDS[world]), 0
    for seed in range(40):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            evicted += operation.method == "evict" and bool(step.answer.value)
            state = step.after
    assert evicted > 10


@pytest.mark.parametrize("world", WORLDS)
def test_no_other_answer_to_evict_is_accepted(world):
    """In the states of those walks, of all sets of blocks just those that are listed."""
    spec, asked = small(**WORLDS[world]), 0
    for seed in range(50):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(30):
            operation = chooser.operation(spec, state)
            if state.at().idle:
                asked += 1
                one = evict(1 + seed % 2)
                listed = {o.answer.value for o in spec.choices(state, spec.operation(one))}
                for chosen in range(1 << len(state.blocks())):
                    value = " ".join(str(b) for b in state.blocks() if chosen >> b & 1)
                    accepted = laws(spec, state, one, value) == []
                    if spec.contract.order != "lru":  # or else of several that are as old, one
                        assert accepted == (value in listed)
                    assert accepted or value not in listed
            state = chooser.pick(accepted_choices(spec, state, operation)).after
    assert asked > 5
