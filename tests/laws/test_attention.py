"""The law of attention: what it accepts, what it alone sees, and what travels in a trace."""

import json
import math

import attending
import numpy as np
import pytest
from attending import Attending
from attrs import evolve
from scopes import allocate, free

from kvspec import Geometry
from kvspec.attention.causal import causal_attention
from kvspec.attention.probe import excuses, expected, parted, tolerance
from kvspec.contract import Contract
from kvspec.engines.replay import replay
from kvspec.engines.session import Session
from kvspec.kernel.names import call_text
from kvspec.kernel.outcome import Answer, Attended, Heads, Observation, Outcome, Probe
from kvspec.kernel.script import call
from kvspec.kernel.state import Cell
from kvspec.rooms import specification
from kvspec.rooms.attention import probing, row, tag_bits
from kvspec.suite.check import check_allocator
from kvspec.traces.reduce import Reducer
from kvspec.traces.trace import TraceError, from_json, to_json

CLAIMED = ("core", "sharing", "store", "attention")
HEADS = Heads(4, 2, 8, 4, 11)

FAULTS = {
    attending.OneTooMany: ((1, 2), "one row more, what nobody wrote", "allocate(A, 1)"),
    attending.OneTooFew: ((1, 2), "without position 1", "allocate(A, 2)"),
    attending.Interleaved: ((1, 1), "must be", "allocate(A, 1)"),
    attending.Unscaled: ((1, 2), "along the key of position 0", "allocate(A, 2)"),
    attending.StaleBlock: (
        (2, 2),
        "where position 1 has what nobody wrote",
        *("allocate(A, 1)", "fork(A, B)", "append(A, 1)"),
    ),
    attending.NotANumber: ((1, 2), "is nan.", "allocate(A, 1)"),
}
"""For each fault its smallest pool, what is said of it, and the shortest story."""


# ------------------------------------------------------------------------------ the verdicts


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 2, 8, 4), (1, 1, 4, 8), (3, 3, 16, 2), (6, 1, 128, 4)])
def test_a_right_attention_is_right_in_every_dtype_and_shape(dtype, shape):
    """Multi-head, grouped and multi-query attention all hold, and none is vacuous."""
    names = ("n_heads", "n_kv_heads", "d_k", "d_v")
    own = dict(zip(names, shape, strict=True), dtype=dtype, width=shape[1] * (shape[2] + shape[3]))
    report = check_allocator(type("Own", (Attending,), own), profile="quick")
    assert report.exit_code == 0
    assert report.laws["attention"].bites > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_of_attention_alone_is_reported_as_that(fault, seed):
    """Nothing else is wrong, read-back included; the story is 1-minimal, and comes again."""
    pool, why, *story = FAULTS[fault]
    trace = check_allocator(fault, profile="quick", seed=seed).trace
    [breach] = trace.breaches
    assert breach.law == "attention"
    assert why in breach.because
    assert [call_text(step.operation) for step in trace.steps] == story
    assert (trace.geometry.num_blocks, trace.geometry.block_size) == pool
    assert Reducer(fault).is_minimal(trace)
    assert replay(fault, trace).breaches == trace.breaches
    assert replay(Attending, trace).breaches == ()
    assert from_json(to_json(trace)) == trace


@pytest.mark.parametrize("fault", [k for k in FAULTS if k is not attending.StaleBlock])
def test_the_first_look_at_two_positions_shows_a_fault(fault):
    """Not chance but the query finds it: at whatever step, in one look."""
    for clock in range(20):
        spec = specification(Geometry(8, 4), Contract(), CLAIMED)
        session = Session(fault, spec)
        for _ in range(clock):
            assert not session.perform(spec.operation(allocate(0, 0)))
            assert not session.perform(spec.operation(free(0)))
        assert [b.law for b in session.perform(spec.operation(allocate(1, 5)))] == ["attention"]


def test_what_fails_is_misuse_and_what_is_odd_is_ill_formed():
    """An unknown id and an empty sequence are errors; an output of another shape is none."""

    class Empty(Attending):
        def attend(self, seq, query):
            if not self._sequence(seq).length:
                return np.zeros((4, 4), "float16")
            return super().attend(seq, query)

    class Flat(Attending):
        def attend(self, seq, query):
            return super().attend(seq, query).ravel()

    class Whole(Attending):
        def attend(self, seq, query):
            return super().attend(seq, query).astype(int)

    told = {kind: check_allocator(kind, profile="quick").trace for kind in (Empty, Flat, Whole)}
    laws = {kind: trace.law for kind, trace in told.items()}
    assert laws == {Empty: "misuse", Flat: "well-formed", Whole: "well-formed"}
    assert "attend(A, a query along position 0): the output has shape (16,), not (4, 4)" in (
        told[Flat].breaches[0].because
    )
    assert "dtype int64, not float16" in told[Whole].breaches[0].because


def test_what_was_not_asked_or_is_not_known_is_not_judged():
    """No query, and rows that nobody wrote: neither is in a look, and both have a verdict."""
    spec = specification(Geometry(2, 2), Contract(), CLAIMED)
    session = Session(Attending, spec)
    session.call("allocate", seq=0, num_tokens=1)
    free = spec.operation(call("free", seq=1))
    sequence = evolve(session.state.sequences[0], cells=(None,))
    unknown = session.state.with_sequence(0, sequence)
    probe = Probe((0.0,) * 32, (0.0,) * 16, 0)
    for state, probes in ((session.state, ()), (unknown, (probe,))):
        seen = Observation(attended={0: Attended(HEADS, probes)})
        step = spec.believe(state, free, Outcome(Answer("error", "UnknownSequence"), seen))
        assert "attention" not in {law.id for law in step.relevant}
        assert spec.judge(step) == ()


# ------------------------------------------------------------------------------ the rows


@pytest.mark.parametrize("heads", [HEADS, Heads(1, 1, 4, 8, 11), Heads(8, 8, 64, 64, 24)])
def test_rows_are_small_exact_and_all_different(heads):
    """Keys are signs, values are eighths, float16 holds them, and no cell has another's row."""
    rows = {row(p, op, 48, heads): (p, op) for op in range(100) for p in range(48)}
    assert len(rows) == 100 * 48
    keys, values = parted([*rows][:999], heads)
    assert set(np.abs(keys).ravel()) == {1.0}
    assert set(values.ravel()) == {eighth / 8 for eighth in range(-8, 8)}
    assert all(np.array(numbers, "float16").tolist() == list(numbers) for numbers in [*rows][:99])
    assert all(len(numbers) == heads.width for numbers in rows)


@pytest.mark.parametrize("bits", [(1, 1, 4, 2), (1, 1, 3, 1)])
def test_the_first_word_is_a_permutation(bits):
    """With few bits, just as many rows as these tell apart are different, and then they recur."""
    heads = Heads(*bits, 11)
    count, writers = 2 ** tag_bits(heads), 16
    steps = count // writers
    first = [row(0, op, 1, heads, writer) for op in range(steps) for writer in range(writers)]
    assert len(set(first)) == len(first) == count
    assert row(0, steps, 1, heads) == row(0, 0, 1, heads, writers) == first[0]


def test_every_position_has_its_turn_and_every_head_both_queries():
    """Over some steps, and at each length, whatever the parity of the step."""
    for length in (1, 2, 3, 7, 16):
        cells = [Cell(p, 0, p) for p in range(length)]
        asked = [probing(cells, clock, Geometry(8, 4), HEADS) for clock in range(20 * length)]
        for parity in (0, 1):
            assert {position for position, _ in asked[parity::2]} == set(range(length))
            zeros = [not any(asked[parity][1][h * 8 : h * 8 + 8]) for h in range(4)]
            assert zeros == [(h + parity) % 2 == 1 for h in range(4)]


# ------------------------------------------------------------------------------ the numbers


def rows_of(count, heads=HEADS):
    return [row(p, p // 3, 48, heads) for p in range(count)]


def test_what_is_expected_is_the_definition():
    """Several queries over the same rows give the last position of causal attention."""
    rows, random = rows_of(7), np.random.default_rng(0)
    asked = random.standard_normal((3, 32))
    keys, values = parted(rows, HEADS)
    for q, output in zip(asked, expected(asked.tolist(), rows, HEADS), strict=True):
        whole = causal_attention(np.tile(q.reshape(1, 4, 8), (7, 1, 1)), keys, values)
        assert np.allclose(output, whole[-1].ravel(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("count", [2, 3, 8, 48])
def test_the_tolerance_hides_no_row(count):
    """In pools as large as the suite's, a row less, more or another is no matter of rounding."""
    rows = rows_of(count)
    cells = [Cell(p, 0, p // 3) for p in range(count)]
    others = [(0.0,) * 24, row(0, 99, 48, HEADS)]
    for clock in (0, 1):
        _, query = probing(cells, clock, Geometry(50, 4), HEADS)
        right, most = expected([query], rows, HEADS)[0], tolerance(query, count, HEADS)
        for wrong in excuses(query, rows, others, HEADS):
            assert (np.abs(wrong - right).max(axis=-1) > most).all()


def test_the_excuses_are_those_attentions():
    """Leaving out, adding and exchanging a row by sums is the same as attending again."""
    rows, other = rows_of(4), row(1, 77, 48, HEADS)
    _, query = probing([Cell(p, 0, p // 3) for p in range(4)], 3, Geometry(12, 4), HEADS)
    short, long, exchanged = excuses(query, rows, [other], HEADS)

    def again(*seen):
        return expected([query], seen, HEADS)[0]

    assert np.allclose(long[0], again(*rows, other))
    for i in range(4):
        assert np.allclose(short[i], again(*rows[:i], *rows[i + 1 :]))
        assert np.allclose(exchanged[i, 0], again(*rows[:i], other, *rows[i + 1 :]))


# ------------------------------------------------------------------------------ the traces


def test_a_trace_carries_what_was_attended_nan_and_infinity_too():
    """Both ways, equal, and as JSON that any reader takes."""

    class Wild(Attending):
        def attend(self, seq, query):
            outputs = super().attend(seq, query)
            outputs[0, :3] = np.nan, np.inf, -np.inf
            return outputs

    spec = specification(Geometry(4, 2), Contract(), CLAIMED)
    session = Session(Wild, spec)
    [breach] = session.perform(spec.operation(allocate(0, 3)))
    assert breach.law == "attention"
    seen = session.trace.steps[0].outcome.observation.attended[0]
    assert seen.heads == HEADS
    assert seen.probes[0].output[1:3] == (math.inf, -math.inf)
    text = to_json(session.trace)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert from_json(text) == session.trace


def test_an_older_trace_and_one_that_is_odd():
    """Without the field a trace loads as before; with heads that do not fit it is none."""
    spec = specification(Geometry(4, 2), Contract(), CLAIMED)
    session = Session(Attending, spec)
    assert not session.perform(spec.operation(allocate(0, 3)))
    data = json.loads(to_json(session.trace))
    seen = data["steps"][0]["outcome"]["observation"]
    attended = seen.pop("attended")
    older = from_json(json.dumps(data))
    assert older.steps[0].outcome.observation.attended == {}
    for name, value in (("d_k", 0), ("n_kv_heads", 3), ("d_v", 5), ("bits", "11")):
        odd = json.loads(json.dumps(attended))
        odd["0"]["heads"][name] = value
        seen["attended"] = odd
        with pytest.raises(TraceError, match="attended"):
            from_json(json.dumps(data))
    for output in (None, "NaN", 1, True):
        odd = json.loads(json.dumps(attended))
        odd["0"]["probes"][0]["output"][0] = output
        seen["attended"] = odd
        with pytest.raises(TraceError, match="output"):
            from_json(json.dumps(data))
    seen["attended"] = attended
    data["capabilities"].remove("store")
    with pytest.raises(TraceError, match="attention cannot be claimed without store"):
        from_json(json.dumps(data))
