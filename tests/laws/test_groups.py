"""The room of KV groups: what is done in one group is done in all, or in none."""

from collections.abc import Callable, Iterator

import pytest
from attrs import evolve
from exploring import (
    accepted_choices,
    broken,
    chosen,
    copies,
    explored,
    only_choices_are_accepted,
    shown,
    undone,
)
from faults import bites_in_its_witness
from scopes import (
    RandomChooser,
    allocate,
    append,
    begin,
    can_allocate,
    fork,
    free,
    scope,
    told,
)

from kvimpls.reference import Reference
from kvspec.contract import Contract, Geometries, Granular
from kvspec.driver.target import target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import PROFILES, run_machine
from kvspec.geometry import DEVICE, Geometry, Group, Place
from kvspec.interface import UnsupportedGeometry
from kvspec.kernel.generation import fit
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, Answer
from kvspec.kernel.script import Call
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import Entries, State, TableOf, table_of
from kvspec.kernel.step import Step
from kvspec.rooms import ROOMS, groups, specification
from kvspec.suite.check import check_allocator
from kvspec.suite.report import Verdict

QUICK = PROFILES["quick"]
ALL = ("core", "sharing", "lease", "admission", "groups")
OWN = Place(pool=1)
"""The pool that the second group has to itself."""


def pair(num_blocks: int = 4, own: int = 2, **fields: object) -> Specification:
    """Blocks of 2 tokens, and of 3 from a pool of its own; the ids are numbered through."""
    fields = {"capabilities": ALL, **fields}
    both = [Group(2), Group(3, num_blocks=own)]
    return scope(num_blocks, 2, groups=both, **fields)  # type: ignore[arg-type]  # of any kind


TINY = scope(2, 1, groups=[Group(1), Group(2, num_blocks=1)], capabilities=ALL)


def first(seq: int) -> TableOf:
    """The table of `seq` in the first group."""
    return table_of(seq)


def second(seq: int) -> TableOf:
    """The table of `seq` in the second group, which has its own pool."""
    return table_of(seq, 1, OWN)


# ------------------------------------------------------------------------------ the law bites


@pytest.mark.parametrize("law", groups.LAWS, ids=lambda law: law.id)
def test_a_witness_makes_its_law_bite(law):
    """The script breaks nothing, and in it some disturbed outcome would break the law."""
    assert bites_in_its_witness(law, Reference)


class OnePool(Reference):
    """The reference, where all groups take from one pool."""

    contract = Contract(geometries=Geometries(own_pools=False))

    def __init__(self, geometry: Geometry, **more: object) -> None:
        if len(geometry.pools) > 1:
            raise UnsupportedGeometry("all groups take from one pool")
        super().__init__(geometry, **more)  # type: ignore[arg-type]  # a checkpoint, or nothing


def test_where_groups_have_no_pools_of_their_own_none_is_tried():
    """The law is judged, and bites, in geometries with one pool."""
    tested = target(OnePool)
    report, run = check_allocator(tested, profile="quick"), run_machine(tested, QUICK, Ledger())
    assert report.laws["groups"].verdict is Verdict.HELD
    assert (run.trace, run.refused_geometries) == (None, 0)


def test_the_witness_has_a_refusal_of_the_second_group_alone():
    """In the plainest geometry the first group could hold what the second cannot."""
    geometry = groups.ROOM.shaped(Geometry(4, 2), Geometries(), None)
    spec = specification(geometry, Contract(), ("core", "groups"))
    assert spec.geometry.pools == (4, 2)
    first_call = spec.operation(groups.LAWS[0].witness(geometry)[0])
    needs = first_call.needs(spec.initial(), spec)
    assert [spec.fits(spec.initial(), need, need.fresh) for need in needs] == [True, False]


# ------------------------------------------------------------------------------ choices


def calls(spec: Specification, state: State) -> Iterator[Operation]:
    """The calls that make a difference in so small a pool, with at most two sequences."""
    script: list[Call] = []
    for seq in (0, 1):
        if seq not in state.sequences:
            script += [allocate(seq, n) for n in (0, 1, 2, 3, 5)]
    for seq in state.sequences:
        script += [append(seq, n) for n in (0, 1, 2)] + [free(seq), fork(seq, 1 - seq)]
    yield from map(spec.operation, script)


@pytest.mark.parametrize(
    "both",
    [(Group(2), Group(3, num_blocks=2)), (Group(2), Group(1))],
    ids=["a pool of its own", "one pool for both"],
)
def test_every_choice_in_every_state_of_a_small_pool_is_accepted(both):
    """With 2 sequences in two groups, in one pool or two, no choice breaks a law."""
    spec = scope(4, 2, groups=both, capabilities=("core", "sharing", "groups"))
    assert len(explored(spec, calls)) > 50


WORLDS = {
    "strict": pair(),
    "one pool for both": scope(6, 2, groups=[Group(2), Group(3)], capabilities=ALL),
    "three groups": scope(
        *(8, 2), groups=[Group(2), Group(4, num_blocks=1), Group(1)], capabilities=ALL
    ),
    "windows": scope(
        *(5, 2),
        groups=[Group(2, window=3), Group(3, num_blocks=4)],
        capabilities=(*ALL, "window"),
    ),
    "windows in one pool": scope(
        *(6, 2),
        groups=[Group(2, window=3), Group(1, window=2)],
        capabilities=(*ALL, "window"),
    ),
    "bounded": pair(max_tokens=5),
    "eager tail": pair(6, 4, eager_fork="tail"),
    "first block 1": pair(first_block=1),
    "granules of 4": pair(8, 5, reservation=Granular(4)),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_choice_on_random_walks_is_accepted(world):
    """With pools of their own and shared ones, no choice of a proposed call breaks a law."""
    spec, fits = WORLDS[world], set()
    for seed in range(15):
        chooser, state = RandomChooser(seed), spec.initial()
        for _ in range(40):
            operation = chooser.operation(spec, state)
            step = chooser.pick(accepted_choices(spec, state, operation))
            if not step.expected.errors:
                needs = operation.needs(state, spec)
                fits.add(tuple(spec.fits(state, need, need.fresh) for need in needs))
            state = step.after
    alone = len(spec.geometry.pools) == 1
    assert {(True,), (False,)} <= fits if alone else {(True, True), (True, False)} <= fits


@pytest.mark.parametrize(
    "script",
    [
        (allocate(0, 1),),
        (allocate(0, 2),),
        (allocate(0, 3),),
        (allocate(0, 0),),
        (allocate(0, 1), append(0, 1)),
        (allocate(0, 2), append(0, 1)),
        (allocate(0, 1), append(0, 0)),
        (allocate(0, 1), free(0)),
        (allocate(0, 1), begin(0, 0), free(0)),
    ],
    ids=lambda script: " ".join(map(told, script)),
)
def test_judge_accepts_the_choices_and_rejects_every_other_outcome(script):
    """In 2 blocks of 1 and 1 of 2: two copies, all tables of both groups, all counts of both."""
    assert only_choices_are_accepted(TINY, *script, copied=1)


def test_judge_accepts_the_choices_of_a_child_and_rejects_every_other_outcome():
    """Both tables of a child are those of its parent."""
    spec = scope(2, 1, groups=[Group(1), Group(2, num_blocks=1)], capabilities=ALL)
    assert only_choices_are_accepted(spec, allocate(0, 1), fork(0, 1), entries=1, copied=1)


# ------------------------------------------------------------------------------ wrong outcomes


def half_fit() -> Step:
    """A prompt that fits the first group and not the second."""
    return chosen(pair(), allocate(0, 7))


def half_grown() -> Step:
    """An append that fits the first group and not the second."""
    return chosen(pair(), allocate(0, 5), append(0, 2))


def grown() -> Step:
    """An append that takes a block in each group."""
    return chosen(pair(), allocate(0, 3), append(0, 2))


def started() -> Step:
    """A prompt in both groups."""
    return chosen(pair(), allocate(0, 5))


def ended() -> Step:
    """A sequence goes."""
    return chosen(pair(), allocate(0, 5), free(0))


def forked() -> Step:
    """A child of a sequence."""
    return chosen(pair(6, 4), allocate(0, 5), fork(0, 1))


def written() -> Step:
    """A child writes into the tails that it shares in both groups."""
    return chosen(pair(6, 4), allocate(0, 1), fork(0, 1), append(1, 1))


def leased() -> Step:
    """A sequence goes while it is in flight."""
    return chosen(pair(), allocate(0, 5), begin(0, 0), free(0))


def failed() -> Step:
    """An append that failed half way, at a point that the suite chose."""
    step = undone(grown(), Answer("injected", "take a block"))
    outcome = evolve(step.outcome, fault="take a block")
    return step.spec.believe(step.before, step.operation, outcome)


def asked() -> Step:
    """A question about a prompt that fits the first group alone."""
    return chosen(pair(), allocate(0, 1), free(0), can_allocate(7))


def seen(step: Step, tables: dict[TableOf, Entries], *free: int) -> Step:
    """The step with other tables, and with the counts that would go with them."""
    return shown(step, tables=tables, free=dict(zip((DEVICE, OWN), free, strict=False)))


WRONG: dict[str, tuple[Callable[[], Step], Callable[[Step], Step], str]] = {
    "what one group took is not given back": (half_fit, lambda s: seen(s, {}, 0), "groups"),
    "nothing is given back": (half_fit, lambda s: seen(s, {}, 0, 0), "conservation"),
    "one group has grown after a refusal": (
        *(half_grown, lambda s: seen(s, {first(0): (0, 1, 2, 3)}, 0)),
        "groups",
    ),
    "both have after a refusal": (
        *(half_grown, lambda s: seen(s, {first(0): (0, 1), second(0): (4,)}, 2, 1)),
        "atomicity",
    ),
    "one group has grown after a fault": (
        *(failed, lambda s: seen(s, {first(0): (0, 1, 2)}, 1)),
        "groups",
    ),
    "one group keeps a block after a fault": (failed, lambda s: seen(s, {}, 1), "groups"),
    "one group has not grown": (grown, lambda s: seen(s, {second(0): (4,)}, 1, 1), "groups"),
    "the other group has not grown": (grown, lambda s: seen(s, {first(0): (0, 1)}, 2), "groups"),
    "a group has no table": (started, lambda s: seen(s, {second(0): ()}, 1, 2), "groups"),
    "a group is counted in another's blocks": (
        *(started, lambda s: seen(s, {first(0): (0, 1)}, 2)),
        "groups",
    ),
    "a group has a block too many": (
        *(grown, lambda s: seen(s, {first(0): (0, 1, 2, 3)}, 0)),
        "bounded-waste",
    ),
    "all groups have too few": (
        *(started, lambda s: seen(s, {first(0): (0,), second(0): ()}, 3, 2)),
        "bounded-waste",
    ),
    "a block is of the wrong pool": (
        *(started, lambda s: seen(s, {second(0): (4, 3)}, 1, 1)),
        "groups",
    ),
    "ids are counted afresh in each pool": (
        *(started, lambda s: seen(s, {second(0): (0, 1)}, 1, 0)),
        "groups",
    ),
    "a block is in a table twice": (
        *(started, lambda s: seen(s, {second(0): (4, 4)}, 1, 1)),
        "no-overlap",
    ),
    "an end reaches one group only": (ended, lambda s: seen(s, {}, 4, 0), "groups"),
    "an end reaches no group": (ended, lambda s: seen(s, {}, 1, 0), "conservation"),
    "the counts of the pools are exchanged": (started, lambda s: seen(s, {}, 0, 1), "conservation"),
    "a child has its table in one group only": (
        *(forked, lambda s: seen(s, {second(1): ()})),
        "fork",
    ),
    "one group is not copied": (
        *(written, lambda s: shown(s, copies((0, 1)), {second(1): (6,)}, {OWN: 3})),
        "copy-on-write",
    ),
    "the copy of one group is not reported": (
        *(written, lambda s: shown(s, copies((0, 1)))),
        "read-back",
    ),
    "a copy is told in the ids of its pool": (
        *(written, lambda s: shown(s, copies((0, 1), (0, 1)))),
        "needless-copy",
    ),
    "the lease is of one group only": (leased, lambda s: seen(s, {}, 1, 2), "in-flight"),
    "only the first group is asked": (
        asked,
        lambda s: shown(s, Answer("done", "OK")),
        "can-allocate",
    ),
    "what fits both is refused": (started, undone, "admission"),
    "what fits one group alone is granted": (
        *(
            half_fit,
            lambda s: shown(
                s, DONE, {first(0): (0, 1, 2, 3), second(0): (4, 5)}, {DEVICE: 0, OWN: 0}
            ),
        ),
        "groups",
    ),
}


IMPLYING = {
    *("needless-copy", "no-overlap", "atomicity", "frame", "bounded-waste", "admission"),
    *("conservation", "misuse", "injection", "read-back"),
}
"""The laws that between them see all that this one sees."""


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_rejected_and_explained_by_its_own_law(fault):
    """What goes wrong between groups in practice is seen, and its own law says what.

    The law of groups comes after the general ones that imply it: a fault that needs no groups is
    not to be told as one of groups.
    """
    step, wrong, law = WRONG[fault]
    found = [one for one in broken(wrong(step())) if law != "groups" or one not in IMPLYING]
    assert found[:1] == [law], found


@pytest.mark.parametrize("fault", [fault for fault, (*_, law) in WRONG.items() if law == "groups"])
def test_a_reason_names_the_group_or_the_pool(fault):
    """Each way in which groups get out of step has a sentence of its own."""
    step, wrong, _ = WRONG[fault]
    faulty = wrong(step())
    because = next(b.because for b in faulty.spec.judge(faulty) if b.law == "groups")
    assert "group " in because or "pool " in because
    assert because.endswith(".")


FAULTS_OF_LAWS: dict[str, Callable[[], Step]] = {
    "groups": lambda: seen(half_grown(), {first(0): (0, 1, 2, 3)}, 0)
}


def test_the_general_laws_say_that_something_is_wrong_and_this_one_that_a_group_is_behind():
    """With the laws that imply it switched off, it sees the fault by itself."""
    faulty = FAULTS_OF_LAWS["groups"]()
    laws = [breach.law for breach in faulty.spec.judge(faulty)]
    assert laws == ["atomicity", "bounded-waste", "groups"]
    alone = evolve(
        faulty.spec, laws=tuple(one for one in faulty.spec.laws if one.id not in IMPLYING)
    )
    again = alone.believe(faulty.before, faulty.operation, faulty.outcome)
    assert [breach.law for breach in alone.judge(again)] == ["groups"]


# ------------------------------------------------------------------------------ geometries


def test_in_groups_only_what_is_specified_for_them_is_judged():
    """A claim of swapping, caching or storing says nothing of a grouped geometry."""
    plain = tuple(room.capability for room in ROOMS)
    spec = specification(pair().geometry, Contract(), plain)
    beyond = {"swap", "prefix", "store", "attention", "introspection", "resize"}
    assert not beyond & {room.capability for room in spec.rooms}
    assert {"core", "sharing", "lease", "admission", "reservation", "groups"} <= {
        room.capability for room in spec.rooms
    }


def test_groups_need_the_capability_and_blocks_that_lie_anywhere():
    """A grouped geometry asks for the claim, and for that of its windows; and has no extents."""
    with pytest.raises(ValueError, match="asks for groups"):
        specification(pair().geometry, Contract(), ("core",))
    windowed = Geometry(4, 2, groups=[Group(2), Group(3, window=2)])
    with pytest.raises(ValueError, match="asks for window"):
        specification(windowed, Contract(), ("core", "groups"))
    with pytest.raises(ValueError, match="placed contiguous"):
        specification(Geometry(3, 2), Contract(placement="contiguous"), ("core", "groups"))


def test_half_of_the_drawn_geometries_are_plain_and_the_others_of_every_kind():
    """Two groups and three, shared pools and own ones, and the window goes to one of them."""
    base = Geometry(6, 2, window=3, num_host_blocks=2)
    drawn = [groups.ROOM.shaped(base, Geometries(), RandomChooser(seed)) for seed in range(200)]
    grouped = [geometry for geometry in drawn if geometry.groups is not None]
    assert 70 < len(grouped) < 130
    assert {2, 3} == {len(geometry.layout) for geometry in grouped}
    assert {1, 2} <= {len(geometry.pools) for geometry in grouped}
    for geometry in grouped:
        assert geometry.num_host_blocks == 0
        assert [group.window for group in geometry.layout if group.window] == [3]
    shared = Geometries(own_pools=False)
    drawn = [groups.ROOM.shaped(base, shared, RandomChooser(seed)) for seed in range(200)]
    assert {len(geometry.pools) for geometry in drawn} == {1}
    assert {len(geometry.layout) for geometry in drawn} == {1, 2, 3}
    none = evolve(base, window=None)
    for seed in range(20):
        shaped = groups.ROOM.shaped(none, Geometries(), RandomChooser(seed))
        assert all(group.window is None for group in shaped.layout)


def test_a_fit_is_exact_in_every_pool():
    """So many tokens fit a pool, and one more does not, in all the groups that share it."""
    for spec in WORLDS.values():
        state = spec.initial()
        for place in dict.fromkeys(state.places):
            tokens = fit(state, spec, 0, place)
            for added, fits in ((tokens, True), (tokens + 1, False)):
                if isinstance(spec.contract.reservation, Granular):
                    continue
                needs = spec.operation(allocate(0, added)).needs(state, spec)
                [need] = [need for need in needs if need.place == place]
                assert spec.fits(state, need, need.fresh) == fits
