"""The torch allocator: where its state lives, and what the K/V data in it go through."""

from itertools import chain
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from kvimpls.torch_paged import TorchPaged  # noqa: E402 (only where torch is installed)
from kvimpls.torch_paged.blocks import BlockPool  # noqa: E402 (the same)
from kvimpls.torch_paged.prefix import Content, PrefixIndex  # noqa: E402 (the same)
from kvimpls.torch_paged.store import Store  # noqa: E402 (the same)
from kvimpls.torch_paged.tables import Sequence, Tables  # noqa: E402 (the same)
from kvspec import (  # noqa: E402 (the same)
    Admission,
    AllocatorError,
    Copy,
    Geometry,
    Group,
    InjectedFault,
    InvalidLength,
    NotResident,
    OutOfBlocks,
    SequenceExists,
    UnknownLease,
    UnknownSequence,
)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    ),
]


def rows(*tokens, width=32):
    """Values of shape `(tokens, width)`: each token's number, `width` times."""
    return np.repeat(np.array(tokens, dtype=np.float16)[:, None], width, axis=1)


def frozen(thing):
    """All that a pool or a part of it holds, as a value: tensors, numbers, tables and contents."""
    if isinstance(thing, torch.Tensor):
        return thing.dtype, tuple(thing.shape), thing.tolist()
    if isinstance(thing, Content):
        return id(thing), thing.block
    if isinstance(thing, dict):
        return {key: frozen(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [frozen(value) for value in thing]
    if isinstance(thing, Sequence):
        return {name: frozen(getattr(thing, name)) for name in thing.__slots__}
    if isinstance(thing, (TorchPaged, BlockPool, Tables, Store, PrefixIndex)):
        return {name: frozen(value) for name, value in vars(thing).items()}
    return repr(thing)


@pytest.fixture
def busy():
    """A pool with forks, a copied block, an open lease, a freed sequence and doubled rows."""
    pool = TorchPaged(Geometry(32, 2, max_tokens=12), device="cpu")
    pool.allocate(2**31 - 1, 3, limit=9)
    for child in range(20):
        pool.fork(2**31 - 1, child)
    pool.append(5, 2)
    pool.begin_transfer(5)
    pool.free(5)
    return pool


def test_no_block_id_sits_in_a_python_container(busy):
    """Tables, counts, leases and the free stack are tensors; a sequence has numbers and tokens."""
    [pool], [tables] = busy._pools, busy._groups
    for tensor in (pool.stack, pool.users, pool.leases, pool.since, tables.entries):
        assert tensor.dtype == torch.int64
    for part in (pool, tables):
        assert not any(isinstance(value, (list, tuple, dict)) for value in vars(part).values())
    assert sorted(busy._sequences) == [*range(5), *range(6, 20), 2**31 - 1]
    rows = [state.row for state in busy._sequences.values()]
    assert sorted(rows + busy._spare) == list(range(len(tables.entries)))


def test_tables_hold_the_blocks_of_live_sequences_only(busy):
    """Beyond a sequence's blocks, and in spare rows, every table entry is -1."""
    entries = busy._groups[0].entries
    held = [block for seq in busy._sequences for block in busy.block_table(seq)]
    assert sorted(entries[entries != -1].tolist()) == sorted(held)


def test_a_lease_holds_a_tensor(busy):
    """A lease keeps its blocks as a tensor of its own, which later appends do not change."""
    lease = busy.begin_transfer(0)
    [blocks] = lease.blocks
    before = blocks.tolist()
    busy.append(0, 4)
    assert isinstance(blocks, torch.Tensor)
    assert blocks.tolist() == before


def test_no_python_loop_over_a_sequence():
    """A sequence 256 times as long takes as many torch operations."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    def calls(tokens):
        pool = TorchPaged(Geometry(1024, 4, num_host_blocks=1024), device="cpu")
        pool.allocate(0, 4096)  # the tables are as wide as they will be
        pool.free(0)
        values = np.zeros((tokens, 32), dtype=np.float16)
        prompt = list(range(tokens))
        with Count() as count:
            pool.allocate(1, tokens)
            pool.write(1, 0, values)
            pool.fork(1, 2)
            pool.append(2, tokens)
            pool.read(2)
            pool.attend(2, np.zeros((4, 8)))
            pool.block_table(2)
            pool.end_transfer(pool.begin_transfer(2))
            pool.append_batch([1, 2], [1, 2])
            pool.truncate(2, 3)
            pool.free(1)
            pool.swap_out(2)
            pool.swap_in(2)
            pool.allocate_prompt(3, prompt)
            pool.mark_written(3, tokens)
            pool.free(3)
            pool.allocate_prompt(4, prompt)
            pool.resize(2000)
        return count.calls

    assert calls(11) == calls(7 * 128 + 3)


@pytest.mark.parametrize("tokens", [10**12, 2**63 - 1, 2**63, 2**200])
def test_huge_lengths_are_quick_refusals(tokens):
    """A length that no pool holds is refused by arithmetic: no tensor of it would fit."""
    pool = TorchPaged(Geometry(4, 2), device="cpu")
    pool.allocate(1, 3, limit=tokens)
    pool.allocate(2, 0)
    before = frozen(pool)
    for call in (
        lambda: pool.allocate(3, tokens),
        lambda: pool.allocate(3, tokens, limit=tokens),
        lambda: pool.append(1, tokens - 3),
        lambda: pool.append(2, tokens),
    ):
        with pytest.raises(OutOfBlocks):
            call()
    with pytest.raises(InvalidLength):
        pool.write(1, tokens, rows(1))
    assert pool.can_allocate(tokens) is Admission.NEVER
    assert frozen(pool) == before


def test_a_huge_length_beyond_max_tokens_is_invalid():
    """With `max_tokens`, a huge length or limit is `InvalidLength`."""
    pool = TorchPaged(Geometry(4, 2, max_tokens=8), device="cpu")
    pool.allocate(1, 3)
    with pytest.raises(InvalidLength):
        pool.append(1, 10**12)
    with pytest.raises(InvalidLength):
        pool.allocate(2, 1, limit=10**12)
    assert pool.can_allocate(10**12) is Admission.NEVER


@pytest.mark.parametrize("device", DEVICES)
def test_contents_go_through_the_slot_mapping(device):
    """Across a fork and a copy-on-write, each position is in `table[p // B] * B + p % B`."""
    pool = TorchPaged(Geometry(6, 4), device=device)
    pool.allocate(1, 6)
    pool.write(1, 0, rows(*range(6)))
    assert pool.fork(1, 2) == ()
    assert pool.block_table(2) == pool.block_table(1)
    [(source, destination)] = pool.append(2, 3)
    first, second = pool.block_table(1)
    assert source == second
    assert pool.block_table(2)[:2] == [first, destination]
    pool.write(2, 6, rows(16, 17, 18))
    assert pool.append(1, 1) == ()  # no longer shared: in place
    pool.write(1, 6, rows(26))
    pool.write(1, 1, rows(31, 32))  # in the block that both still share
    expected = {1: [0, 31, 32, 3, 4, 5, 26], 2: [0, 31, 32, 3, 4, 5, 16, 17, 18]}
    for seq, tokens in expected.items():
        np.testing.assert_array_equal(pool.read(seq), rows(*tokens))
        for position, token in enumerate(tokens):
            slot = pool.block_table(seq)[position // 4] * 4 + position % 4
            assert pool._store.slots[slot].tolist() == [token] * 32


@pytest.mark.parametrize("device", DEVICES)
def test_a_leased_block_is_not_handed_out_on_any_device(device):
    """Blocks of a freed sequence stay in flight until the last of its leases has ended."""
    pool = TorchPaged(Geometry(3, 2), device=device)
    assert pool._store.slots.device.type == pool._groups[0].entries.device.type == device
    pool.allocate(1, 3)
    first, second = pool.begin_transfer(1), pool.begin_transfer(1)
    in_flight = pool.block_table(1)
    pool.append(1, 1)  # leased only: written in place
    assert pool.block_table(1) == in_flight
    pool.free(1)
    pool.end_transfer(second)
    assert pool.num_free_blocks() == 1
    assert pool.can_allocate(3) is Admission.LATER
    with pytest.raises(OutOfBlocks):
        pool.allocate(2, 3)
    pool.end_transfer(first)
    pool.allocate(2, 6)  # exactly the free count
    assert sorted(pool.block_table(2)) == [0, 1, 2]


def test_the_device_comes_from_the_environment(monkeypatch):
    """`KVSPEC_DEVICE` is used where no device is given, and only there."""
    monkeypatch.setenv("KVSPEC_DEVICE", "meta")
    assert TorchPaged(Geometry(2, 2))._store.slots.device.type == "meta"
    assert TorchPaged(Geometry(2, 2), device="cpu")._store.slots.device.type == "cpu"
    monkeypatch.setenv("KVSPEC_DEVICE", "")
    assert TorchPaged(Geometry(2, 2))._store.slots.device.type == "cpu"


@pytest.mark.parametrize(
    "foreign", [None, 0, "lease", [], {}, object(), Geometry(1, 1)], ids=lambda v: type(v).__name__
)
def test_a_foreign_object_is_an_unknown_lease(busy, foreign):
    """Whatever is no lease is `UnknownLease`, and nothing changes."""
    before = frozen(busy)
    with pytest.raises(UnknownLease):
        busy.end_transfer(foreign)
    assert frozen(busy) == before


def test_a_lease_of_another_pool_or_an_ended_one_is_unknown(busy):
    """A lease ends once, and only in the pool that began it."""
    other = TorchPaged(Geometry(32, 2, max_tokens=12), device="cpu")
    other.allocate(0, 3)
    stranger, own = other.begin_transfer(0), busy.begin_transfer(0)
    busy.end_transfer(own)
    before = frozen(busy)
    for lease in (stranger, own):
        with pytest.raises(UnknownLease):
            busy.end_transfer(lease)
    assert frozen(busy) == before
    other.end_transfer(stranger)


@pytest.mark.parametrize(
    ("start", "values"),
    [
        (-1, rows(1)),
        (3, rows(1)),
        (4, rows()),
        (0.5, rows(1)),
        (0, rows(1, width=3)),
        (0, np.zeros(4)),
        (0, [[1], [1, 2]]),
        (0, None),
    ],
    ids=["negative", "beyond", "empty-beyond", "fraction", "narrow", "flat", "ragged", "none"],
)
def test_a_write_that_does_not_fit_changes_nothing(start, values):
    """A start, a length or a shape that does not fit is `InvalidLength`."""
    pool = TorchPaged(Geometry(4, 2), device="cpu")
    pool.allocate(1, 3)
    before = frozen(pool)
    with pytest.raises(InvalidLength):
        pool.write(1, start, values)
    with pytest.raises(UnknownSequence):
        pool.write(2, start, values)
    assert frozen(pool) == before


def test_arrays_of_any_layout_can_be_written():
    """Read-only, reversed and transposed arrays, lists and tensors are all values."""
    one = dict.fromkeys(("n_heads", "n_kv_heads", "d_k", "d_v"), 1)
    pool = TorchPaged(Geometry(4, 2), device="cpu", dtype=torch.float32, **one)
    pool.allocate(1, 2)
    assert pool.dtype == np.float32
    expected = np.array([[1, 2], [3, 4]], dtype=np.float32)
    constant = expected.copy()
    constant.flags.writeable = False
    backwards = expected[::-1].copy()[::-1]
    swapped = expected.astype(">f4")
    turned = expected.T.copy().T
    swapped = expected.astype(">f4")
    learned = torch.tensor(expected, requires_grad=True)
    for values in (constant, backwards, turned, swapped, expected.tolist(), learned):
        pool.write(1, 0, np.zeros((2, 2)))
        pool.write(1, 0, values)
        np.testing.assert_array_equal(pool.read(1), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 2), (3, 3), (6, 1)])
def test_attention_is_that_of_the_definition(device, dtype, n_heads, n_kv_heads):
    """On numbers of any size, across blocks and a fork, each head by itself."""
    shape = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_k": 8, "d_v": 4}
    pool = TorchPaged(Geometry(8, 4), device=device, dtype=dtype, **shape)
    random = np.random.default_rng(0)
    values = random.standard_normal((11, pool.width)).astype(pool.dtype)
    query = random.standard_normal((n_heads, 8)).astype(pool.dtype)
    pool.allocate(1, 10)
    pool.write(1, 0, values[:10])
    pool.fork(1, 2)
    pool.append(2, 1)
    pool.write(2, 10, values[10:])
    before = frozen(pool)
    for seq, length in ((1, 10), (2, 11)):
        outputs = pool.attend(seq, query)
        assert outputs.shape == (n_heads, 4)
        assert outputs.dtype == pool.dtype
        exact = values[:length].astype(np.float64)
        keys = exact[:, : n_kv_heads * 8].reshape(length, n_kv_heads, 8)
        contents = exact[:, n_kv_heads * 8 :].reshape(length, n_kv_heads, 4)
        for head in range(n_heads):
            shared = head * n_kv_heads // n_heads
            weights = np.exp(keys[:, shared] @ query[head].astype(np.float64) / np.sqrt(8))
            expected = weights @ contents[:, shared] / weights.sum()
            np.testing.assert_allclose(outputs[head], expected, rtol=2e-3, atol=2e-3)
    assert frozen(pool) == before


@pytest.mark.parametrize(
    "query", [np.zeros((4, 7)), np.zeros(32), None], ids=["narrow", "flat", "no"]
)
def test_a_query_that_does_not_fit_is_an_invalid_length(query):
    """So is one of a sequence in which nothing is written."""
    pool = TorchPaged(Geometry(4, 2), device="cpu")
    pool.allocate(1, 3)
    pool.allocate(2, 0)
    with pytest.raises(InvalidLength):
        pool.attend(1, query)
    with pytest.raises(InvalidLength):
        pool.attend(2, np.zeros((4, 8)))
    with pytest.raises(UnknownSequence):
        pool.attend(3, np.zeros((4, 8)))


@pytest.mark.parametrize("shape", [{"n_heads": 3}, {"d_k": 0}, {"n_kv_heads": 0}], ids=str)
def test_heads_that_cannot_be_shared_out_are_refused(shape):
    """Query heads share key-value heads evenly, and each has at least one number."""
    with pytest.raises(ValueError, match="heads"):
        TorchPaged(Geometry(4, 2), device="cpu", **shape)


# What is known of the data: the row at position p of a sequence holds the number of its token.


def fill(pool, seq, tokens, start=0):
    """Write these tokens and, where they are known ones, publish them."""
    pool.write(seq, start, rows(*tokens[start:]))
    pool.mark_written(seq, len(tokens))


def tokens_of(pool, seq):
    """The tokens that the data of a sequence stand for."""
    return pool.read(seq)[:, 0].tolist()


def cached(pool, seq, tokens, key=None):
    """Have these tokens cached, in blocks that nobody uses."""
    hit = pool.allocate_prompt(seq, tokens, key)
    fill(pool, seq, tokens, hit)
    pool.free(seq)


def see(pool, seq):
    """What an even attention sees: the mean of the values."""
    return pool.attend(seq, np.zeros((4, 8))).mean()


# Rollback.


@pytest.mark.parametrize("device", DEVICES)
def test_truncate_frees_what_the_rest_does_not_need(device):
    """The table becomes its prefix, and only blocks that nobody has become free."""
    pool = TorchPaged(Geometry(8, 2), device=device)
    pool.allocate(1, 7)
    table = pool.block_table(1)
    pool.fork(1, 2)
    pool.append(2, 3)
    assert pool.truncate(1, 3) == ()
    assert pool.block_table(1) == table[:2]
    assert pool.num_free_blocks() == 8 - 5 + 0
    pool.free(2)
    assert pool.num_free_blocks() == 6
    before = frozen(pool)
    pool.truncate(1, 3)
    assert frozen(pool) == before
    pool.truncate(1, 0)
    assert pool.block_table(1) == []
    assert pool.num_free_blocks() == 8


@pytest.mark.parametrize("length", [4, -1, 0.5])
def test_a_length_that_cannot_be_kept_is_invalid(length):
    """More than there is, less than nothing, and no number at all."""
    pool = TorchPaged(Geometry(4, 2), device="cpu")
    pool.allocate(1, 3)
    before = frozen(pool)
    with pytest.raises(InvalidLength):
        pool.truncate(1, length)
    with pytest.raises(UnknownSequence):
        pool.truncate(2, 0)
    assert frozen(pool) == before


@pytest.mark.parametrize("device", DEVICES)
def test_growing_after_a_cut_into_a_shared_block_copies_it(device):
    """The other sequence keeps what was cut off here."""
    pool = TorchPaged(Geometry(6, 4), device=device)
    pool.allocate(1, 8)
    pool.write(1, 0, rows(*range(8)))
    pool.fork(1, 2)
    pool.truncate(2, 6)
    [copy] = pool.append(2, 1)
    assert copy == (pool.block_table(1)[1], pool.block_table(2)[1])
    pool.write(2, 6, rows(60))
    assert tokens_of(pool, 1) == list(range(8))
    assert tokens_of(pool, 2) == [*range(6), 60]


@pytest.mark.parametrize("device", DEVICES)
def test_attention_sees_what_is_written(device):
    """Reserved slots are not seen, nor what was cut off, nor what lies behind a gap."""
    pool = TorchPaged(Geometry(6, 4), device=device)
    pool.allocate(1, 6)
    with pytest.raises(InvalidLength):
        see(pool, 1)
    pool.write(1, 2, rows(9))
    with pytest.raises(InvalidLength):
        see(pool, 1)
    pool.write(1, 0, rows(2, 4))
    assert see(pool, 1) == 3
    pool.fork(1, 2)
    pool.truncate(1, 1)
    assert (see(pool, 1), see(pool, 2)) == (2, 3)


# Window.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize(("size", "window"), [(1, 1), (2, 1), (2, 3), (2, 4), (4, 6)])
def test_a_window_holds_what_the_next_token_sees(device, size, window, step):
    """Entry i goes when `(i + 1) * size <= length + 1 - window`, and the rest reads back."""
    pool = TorchPaged(Geometry(24 // size, size, window=window), device=device)
    prompt = 9  # longer than any of the windows
    pool.allocate(1, prompt)
    assert None not in pool.block_table(1)
    tokens = list(range(1, prompt + 1))
    pool.write(1, 0, rows(*tokens))
    while len(tokens) < 60:  # more than the pool holds
        length = len(tokens)
        pool.append(1, step)
        tokens += range(length + 1, length + step + 1)
        pool.write(1, length, rows(*tokens[length:]))
        table = pool.block_table(1)
        gone = [(i + 1) * size <= length + 1 - window for i in range(len(table))]
        assert [entry is None for entry in table] == gone
        assert len(table) == -(-len(tokens) // size)
        assert pool.num_free_blocks() == 24 // size - gone.count(False)
        live = gone.count(True) * size
        assert tokens_of(pool, 1) == [0] * live + tokens[live:]
        assert see(pool, 1) == pytest.approx(np.mean(tokens[-window:]), rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_window_lets_go_counts_for_the_same_append(device):
    """A full pool suffices, unless it is a fork or a lease that has the block; else all stays."""
    pool = TorchPaged(Geometry(3, 2, window=2), device=device)
    pool.allocate(1, 6)
    lease = pool.begin_transfer(1)
    before = frozen(pool)
    with pytest.raises(OutOfBlocks):
        pool.append(1, 1)
    assert frozen(pool) == before
    pool.end_transfer(lease)
    pool.append(1, 1)
    assert pool.block_table(1)[:2] == [None, None]
    pool.fork(1, 2)
    assert pool.block_table(2) == pool.block_table(1)
    pool.free(1)
    assert pool.num_free_blocks() == 1
    pool.append(2, 0)
    assert pool.block_table(2).count(None) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_cut_must_leave_its_window(device):
    """A length whose window has been released is invalid; zero is always possible."""
    pool = TorchPaged(Geometry(8, 2, window=3), device=device)
    pool.allocate(1, 7)
    pool.append(1, 1)
    assert [entry is None for entry in pool.block_table(1)] == [True, True, False, False]
    before = frozen(pool)
    for length in (1, 4, 6):
        with pytest.raises(InvalidLength):
            pool.truncate(1, length)
    assert frozen(pool) == before
    pool.truncate(1, 7)
    pool.append(1, 2)
    pool.truncate(1, 0)
    assert (pool.block_table(1), pool.num_free_blocks()) == ([], 8)
    pool.append(1, 1)
    assert None not in pool.block_table(1)


# Swap.


@pytest.mark.parametrize("device", DEVICES)
def test_data_survive_the_way_to_the_host_and_back(device):
    """Out, over blocks that others have since written, and in again, whatever was shared."""
    pool = TorchPaged(Geometry(4, 2, num_host_blocks=3), device=device)
    pool.allocate(1, 5)
    pool.write(1, 0, rows(*range(5)))
    pool.fork(1, 2)
    table = pool.block_table(1)
    out = pool.swap_out(1)
    assert out == tuple(map(Copy, table, pool.host_block_table(1)))
    assert (pool.block_table(1), pool.num_free_host_blocks()) == ([], 0)
    assert pool.num_free_blocks() == 1
    assert pool.ref_count(table[0]) == 1
    with pytest.raises(OutOfBlocks):
        pool.swap_out(2)
    pool.free(2)
    pool.allocate(3, 8)
    pool.write(3, 0, rows(*range(90, 98)))
    before = frozen(pool)
    with pytest.raises(OutOfBlocks):
        pool.swap_in(1)
    assert frozen(pool) == before
    pool.free(3)
    host = pool.host_block_table(1)
    assert pool.swap_in(1) == tuple(map(Copy, host, pool.block_table(1)))
    assert (pool.host_block_table(1), pool.num_free_host_blocks()) == ([], 3)
    assert tokens_of(pool, 1) == list(range(5))
    assert see(pool, 1) == 2
    with pytest.raises(AllocatorError):
        pool.swap_in(1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_swapped_out_sequence_is_not_resident(device):
    """Everything but its end, its return and its tables is `NotResident` and changes nothing."""
    pool = TorchPaged(Geometry(4, 2, num_host_blocks=3), device=device)
    pool.allocate_prompt(1, [1, 2, 3])
    pool.allocate(2, 1)
    pool.swap_out(1)
    before = frozen(pool)
    for call in (
        lambda: pool.append(1, 1),
        lambda: pool.append_tokens(1, [4]),
        lambda: pool.append_batch([2, 1], 1),
        lambda: pool.truncate(1, 0),
        lambda: pool.fork(1, 3),
        lambda: pool.begin_transfer(1),
        lambda: pool.mark_written(1, 2),
        lambda: pool.swap_out(1),
        lambda: pool.write(1, 0, rows(1)),
        lambda: pool.read(1),
        lambda: see(pool, 1),
    ):
        with pytest.raises(NotResident):
            call()
    with pytest.raises(SequenceExists):
        pool.allocate(1, 0)
    assert frozen(pool) == before
    pool.free(1)
    assert (pool.num_free_blocks(), pool.num_free_host_blocks()) == (3, 3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_goes_to_the_host_as_it_is(device):
    """Released entries stay `None` on both sides, and take no host block."""
    pool = TorchPaged(Geometry(5, 2, window=3, num_host_blocks=2), device=device)
    pool.allocate(1, 7)
    pool.append(1, 1)
    pool.write(1, 0, rows(*range(8)))
    assert len(pool.swap_out(1)) == 2
    assert pool.host_block_table(1)[:2] == [None, None]
    assert pool.num_free_host_blocks() == 0
    pool.swap_in(1)
    assert pool.block_table(1)[:2] == [None, None]
    assert tokens_of(pool, 1) == [0, 0, 0, 0, 4, 5, 6, 7]
    assert see(pool, 1) == 6


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_published_stays_cached_when_its_sequence_leaves(device):
    """It is found while the sequence is on the host, and again published after its return."""
    pool = TorchPaged(Geometry(6, 2, num_host_blocks=4), device=device)
    tokens = [1, 2, 3, 4, 5]
    pool.allocate_prompt(1, tokens)
    fill(pool, 1, tokens)
    old = pool.block_table(1)
    pool.swap_out(1)
    assert pool.lookup(tokens) == 4
    assert pool.num_free_blocks() == 6
    assert pool.allocate_prompt(2, tokens) == 4
    assert pool.block_table(2)[:2] == old[:2]
    assert tokens_of(pool, 2)[:4] == tokens[:4]
    pool.swap_in(1)
    assert not set(pool.block_table(1)) & set(pool.block_table(2))
    pool.free(2)
    pool.reset_prefix_cache()
    assert pool.lookup(tokens) == 0
    pool.mark_written(1, 5)  # of an earlier epoch
    assert pool.lookup(tokens) == 0
    assert tokens_of(pool, 1) == tokens


# Prefix.


@pytest.mark.parametrize("device", DEVICES)
def test_a_hit_reads_what_another_sequence_wrote(device):
    """Whole blocks of the same tokens under the same key, and one token left to compute."""
    pool = TorchPaged(Geometry(12, 2), device=device)
    tokens = [5, 6, 7, 8]
    assert pool.allocate_prompt(1, tokens) == 0
    pool.write(1, 0, rows(*tokens))
    assert pool.lookup(tokens) == 0  # not yet said to be written
    pool.mark_written(1, 3)
    assert pool.lookup(tokens) == 2
    pool.mark_written(1, 4)
    assert pool.lookup([*tokens, 9]) == 4
    assert pool.allocate_prompt(2, tokens) == 2
    assert pool.allocate_prompt(3, [*tokens, 9]) == 4
    assert pool.block_table(3)[:2] == pool.block_table(1)
    assert pool.ref_count(pool.block_table(1)[0]) == 3
    assert tokens_of(pool, 3)[:4] == tokens
    assert see(pool, 3) == 6.5
    assert pool.allocate_prompt(4, [6, 5, 7, 8, 9]) == 0
    pool.append_tokens(3, [10])
    fill(pool, 3, [*tokens, 9, 10], 4)
    pool.free(3)
    assert pool.lookup([*tokens, 9, 10]) == 6


def test_the_key_counts_with_its_type():
    """Numbers that are equal are different keys, also within tuples."""
    pool = TorchPaged(Geometry(16, 1), device="cpu")
    keys = [None, 1, 1.0, True, "1", (1,), (1.0,), (True,), ((1,),), (), ""]
    for seq, key in enumerate(keys):
        assert pool.lookup([7], key) == 0
        assert pool.allocate_prompt(seq, [7], key) == 0
        fill(pool, seq, [7])
        assert pool.lookup([7], key) == 1
    assert len({pool.block_table(seq)[0] for seq in range(len(keys))}) == len(keys)


@pytest.mark.parametrize("tokens", [np.array([1, 2, 3]), (1, 2, 3), torch.tensor([1, 2, 3])])
def test_tokens_are_the_same_in_any_container(tokens):
    """Arrays, tuples and tensors of integers are tokens, and nothing else is."""
    pool = TorchPaged(Geometry(8, 1), device="cpu")
    cached(pool, 1, [1, 2, 3])
    assert pool.lookup(tokens) == 3
    assert pool.allocate_prompt(2, tokens) == 2
    before = frozen(pool)
    for call in (
        lambda: pool.append_tokens(2, [0.5]),
        lambda: pool.lookup(None),
        lambda: pool.allocate_prompt(3, ["a"]),
    ):
        with pytest.raises(AllocatorError):
            call()
    assert frozen(pool) == before


def test_unknown_tokens_are_never_published():
    """Neither the block of one nor any later one, until it is cut off."""
    pool = TorchPaged(Geometry(8, 2), device="cpu")
    pool.allocate_prompt(1, [1, 2, 3])
    pool.append(1, 1)
    pool.append_tokens(1, [5, 6])
    pool.mark_written(1, 6)
    assert pool.lookup([1, 2, 3, 4, 5, 6]) == 2
    pool.allocate(2, 4)
    pool.mark_written(2, 4)
    pool.free(2)
    assert pool.free_blocks() == pool._pools[0].stack[: pool.num_free_blocks()].tolist()
    pool.truncate(1, 3)
    pool.append_tokens(1, [4])
    pool.mark_written(1, 4)
    assert pool.lookup([1, 2, 3, 4]) == 4


def test_marks_only_rise_until_they_are_cut():
    """A mark below the last is a no-op, one beyond the length invalid."""
    pool = TorchPaged(Geometry(8, 2), device="cpu")
    pool.allocate_prompt(1, [1, 2, 3, 4])
    pool.mark_written(1, 4)
    before = frozen(pool)
    pool.mark_written(1, 2)
    for number in (5, -1, 0.5):
        with pytest.raises(InvalidLength):
            pool.mark_written(1, number)
    with pytest.raises(UnknownSequence):
        pool.mark_written(2, 0)
    assert frozen(pool) == before


@pytest.mark.parametrize("device", DEVICES)
def test_the_longest_idle_goes_first_and_the_tail_before_the_head(device):
    """Cached blocks go only when no other is left, in the order of release."""
    pool = TorchPaged(Geometry(6, 1), device=device)
    for seq, tokens in enumerate(([1, 2], [3, 4])):
        pool.allocate_prompt(seq, tokens)
        fill(pool, seq, tokens)
    pool.free(1)
    pool.free(0)  # later, though it came earlier
    assert pool.num_free_blocks() == len(set(pool.free_blocks())) == 6
    pool.allocate(2, 2)
    assert (pool.lookup([1, 2]), pool.lookup([3, 4])) == (2, 2)
    pool.append(2, 1)
    assert (pool.lookup([1, 2]), pool.lookup([3, 4])) == (2, 1)
    pool.append(2, 1)
    assert (pool.lookup([1, 2]), pool.lookup([3, 4])) == (2, 0)
    pool.append(2, 1)
    assert pool.lookup([1, 2]) == 1
    pool.append(2, 1)
    assert pool.lookup([1, 2]) == 0
    assert pool.num_free_blocks() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_use_makes_a_block_the_last_to_go_and_a_look_does_not(device):
    """A hit renews its place when it is let go again; `lookup` changes nothing."""
    pool = TorchPaged(Geometry(4, 1), device=device)
    for token in (1, 2, 3, 4):
        cached(pool, token, [token])
    assert pool.allocate_prompt(5, [1, 9]) == 1  # 9 takes the block of 2
    pool.free(5)
    assert [pool.lookup([token]) for token in (1, 2, 3, 4)] == [1, 0, 1, 1]
    before = frozen(pool)
    pool.lookup([3])
    pool.lookup([8], "key")
    assert frozen(pool) == before
    pool.allocate(6, 3)
    assert [pool.lookup([token]) for token in (1, 2, 3, 4)] == [1, 0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_refused_prompt_leaves_the_cache_and_its_order(device):
    """What it would have used again is counted as taken, and stays where it was."""
    pool = TorchPaged(Geometry(5, 1), device=device)
    pool.allocate(0, 1)
    cached(pool, 1, [1, 2])
    cached(pool, 2, [3, 4])
    before = frozen(pool)
    with pytest.raises(OutOfBlocks):
        pool.allocate_prompt(3, [1, 2, 5, 6, 7])  # 2 hits, but 3 more are not there
    assert frozen(pool) == before
    assert pool.allocate_prompt(3, [1, 2, 5, 6]) == 2
    assert pool.num_free_blocks() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_writing_where_a_published_block_was_cut_gives_its_contents_up(device):
    """In place, or, where another table has the block, in a copy: then it stays published."""
    pool = TorchPaged(Geometry(4, 4), device=device)
    pool.allocate_prompt(1, [1, 2, 3, 4])
    fill(pool, 1, [1, 2, 3, 4])
    pool.truncate(1, 2)
    assert pool.lookup([1, 2, 3, 4]) == 4
    pool.append_tokens(1, [])
    assert pool.lookup([1, 2, 3, 4]) == 4
    pool.append_tokens(1, [5, 6])
    assert pool.lookup([1, 2, 3, 4]) == 0
    fill(pool, 1, [1, 2, 5, 6], 2)
    assert pool.lookup([1, 2, 5, 6]) == 4
    assert pool.allocate_prompt(2, [1, 2, 5, 6, 7]) == 4
    pool.truncate(2, 3)
    [copy] = pool.append_tokens(2, [8])
    assert copy.source == pool.block_table(1)[0]
    fill(pool, 2, [1, 2, 5, 8], 3)
    assert pool.lookup([1, 2, 5, 6]) == pool.lookup([1, 2, 5, 8]) == 4
    assert (tokens_of(pool, 1), tokens_of(pool, 2)) == ([1, 2, 5, 6], [1, 2, 5, 8])


def test_after_a_reset_older_sequences_and_their_forks_publish_nothing():
    """What is cached is forgotten, idle blocks are plain free ones, newer sequences go on."""
    pool = TorchPaged(Geometry(8, 2), device="cpu")
    cached(pool, 9, [7, 8])
    pool.allocate_prompt(1, [1, 2, 3, 4])
    fill(pool, 1, [1, 2])
    pool.reset_prefix_cache()
    assert pool.lookup([7, 8]) == pool.lookup([1, 2]) == 0
    assert (pool._pools[0].top, pool.num_free_blocks()) == (6, 6)
    pool.fork(1, 2)
    pool.mark_written(1, 4)
    pool.mark_written(2, 4)
    assert pool.lookup([1, 2, 3, 4]) == 0
    pool.free(1)
    cached(pool, 3, [1, 2, 3, 4])
    assert pool.lookup([1, 2, 3, 4]) == 4
    assert tokens_of(pool, 2)[:2] == [1, 2]


def test_contents_that_are_cached_are_not_published_twice():
    """The second block is free, uncached, after its user went; the first stays cached."""
    pool = TorchPaged(Geometry(4, 2), device="cpu")
    for seq in (1, 2):
        pool.allocate_prompt(seq, [1, 2])
    first, second = pool.block_table(1), pool.block_table(2)
    for seq in (1, 2):
        pool.mark_written(seq, 2)
    pool.free(2)
    assert second[0] in pool._pools[0].stack[: pool._pools[0].top].tolist()
    pool.free(1)
    assert pool.allocate_prompt(3, [1, 2, 3]) == 2
    assert pool.block_table(3)[:1] == first


@pytest.mark.parametrize("device", DEVICES)
def test_a_hit_with_a_window_needs_only_its_window(device):
    """Earlier blocks may be gone from the cache, and are `None` in the table in any case."""
    pool = TorchPaged(Geometry(10, 2, window=3), device=device)
    tokens = list(range(1, 9))
    pool.allocate_prompt(1, tokens)
    fill(pool, 1, tokens)
    pool.append_tokens(1, [9])  # lets the first three go, the tail first
    assert pool.block_table(1)[:3] == [None] * 3
    pool.allocate(2, 10)
    assert pool.num_free_blocks() == 3
    pool.append(2, 1)
    pool.append(2, 1)
    assert pool.lookup(tokens) == 8  # needs positions 5 to 7: the blocks 2 and 3
    pool.free(2)
    pool.reset_prefix_cache()

    pool = TorchPaged(Geometry(6, 2, window=3), device=device)
    pool.allocate_prompt(1, tokens)
    fill(pool, 1, tokens)
    pool.append_tokens(1, [9])
    blocks = pool.block_table(1)
    lookups = [pool.lookup(tokens)]
    pool.allocate(2, 2)  # the one block that is not cached
    pool.truncate(2, 0)
    pool.allocate(3, 4)  # and block 2, which was let go first
    lookups += [pool.lookup(tokens), pool.lookup(tokens[:4])]
    assert lookups == [8, 4, 4]
    pool.free(3)
    assert pool.allocate_prompt(4, [1, 2, 3, 4, 5]) == 4
    assert pool.block_table(4)[0] is not None
    assert tokens_of(pool, 4)[:4] == [1, 2, 3, 4]
    assert blocks[3] == pool.block_table(1)[3]


def test_what_the_window_left_behind_unwritten_is_not_published():
    """Late marks publish the blocks that are still there, each as what it holds."""
    pool = TorchPaged(Geometry(8, 1, window=2), device="cpu")
    pool.allocate_prompt(1, [1, 2, 3])
    pool.append_tokens(1, [4])
    pool.append_tokens(1, [5])
    assert pool.block_table(1)[:3] == [None] * 3
    fill(pool, 1, [1, 2, 3, 4, 5])
    assert [pool.lookup([1, 2, 3, 4, 5][:n]) for n in range(6)] == [0, 0, 0, 0, 0, 5]
    assert tokens_of(pool, 1) == [0, 0, 0, 4, 5]
    pool.allocate_prompt(2, [1, 2, 3])
    pool.append_tokens(2, [4])
    pool.append_tokens(2, [5, 6])
    pool.write(2, 0, rows(1, 2, 3))
    assert see(pool, 2) == 0  # all that was written is gone


# Leases.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leave", ["free", "truncate", "swap_out", "window"])
def test_a_lease_outlives_whatever_becomes_of_the_sequence(device, leave):
    """Until it ends, its blocks are not handed out, are not free, and keep their contents."""
    window = 2 if leave == "window" else None
    pool = TorchPaged(Geometry(4, 2, window=window, num_host_blocks=3), device=device)
    pool.allocate_prompt(1, [1, 2, 3, 4])
    leased = pool.block_table(1)
    lease = pool.begin_transfer(1)
    pool.write(1, 0, rows(1, 2, 3, 4))
    {
        "free": lambda: pool.free(1),
        "truncate": lambda: pool.truncate(1, 0),
        "swap_out": lambda: pool.swap_out(1),
        "window": lambda: pool.append(1, 1),
    }[leave]()
    free = pool.num_free_blocks()
    assert free == (1 if leave == "window" else 2)
    pool.allocate(2, 2 * free)
    assert not set(leased) & set(pool.block_table(2))
    with pytest.raises(OutOfBlocks):
        pool.append(2, 1)
    [blocks] = lease.blocks
    assert pool._store.slots.view(4, 2, 32)[blocks].flatten(0, 1)[:, 0].tolist() == [1, 2, 3, 4]
    pool.end_transfer(lease)
    kept = 1 if leave == "window" else 0
    assert pool.num_free_blocks() == 2 - kept
    pool.append(2, 2 * (2 - kept))


@pytest.mark.parametrize("device", DEVICES)
def test_a_leased_cached_block_cannot_be_evicted(device):
    """It is found, but not counted as free; in the order of eviction its lease's end counts."""
    pool = TorchPaged(Geometry(3, 1), device=device)
    pool.allocate_prompt(1, [1])
    fill(pool, 1, [1])
    lease = pool.begin_transfer(1)
    pool.free(1)
    cached(pool, 2, [2])
    assert pool.num_free_blocks() == 2
    pool.allocate(3, 2)
    assert (pool.lookup([1]), pool.lookup([2])) == (1, 0)
    with pytest.raises(OutOfBlocks):
        pool.append(3, 1)
    pool.free(3)
    cached(pool, 2, [2])
    pool.end_transfer(lease)
    pool.allocate(3, 2)
    assert (pool.lookup([1]), pool.lookup([2])) == (1, 0)


# Batches.


def scene(random, geometry):
    """A pool after some random operations, always the same for the same generator."""
    pool = TorchPaged(geometry, device="cpu")
    pool.allocate(0, int(random.integers(7)))
    for child in range(1, 4):
        pool.fork(int(random.integers(child)), child)
    for _ in range(random.integers(9)):
        seq = int(random.integers(5))
        try:
            match random.integers(7):
                case 0:
                    pool.allocate(seq, int(random.integers(9)))
                case 1:
                    tokens = random.integers(2, size=random.integers(9)).tolist()
                    fill(pool, seq, tokens, pool.allocate_prompt(seq, tokens))
                case 2 | 3:
                    pool.fork(seq, int(random.integers(5)))
                case 4:
                    pool.append_tokens(seq, [1] * random.integers(4))
                case 5:
                    pool.truncate(seq, int(random.integers(9)))
                case 6:
                    pool.begin_transfer(seq)
        except AllocatorError:
            pass
    return pool


def pattern(pool, copies):
    """Which tables and copies name the same blocks, whichever these are."""
    names = {None: None}
    tables = (pool.block_table(seq) for seq in sorted(pool._sequences))
    return [names.setdefault(block, len(names)) for block in chain(*tables, *copies)]


@pytest.mark.parametrize("window", [None, 3])
def test_a_batch_is_the_loop_or_nothing(window):
    """Copies, tables and counts are those of one append after the other, or nothing changed."""
    outcomes = set()
    for seed in range(300):
        geometry = Geometry(9, 2, window=window, max_tokens=12)
        batched, looped = (scene(np.random.default_rng(seed), geometry) for _ in range(2))
        random = np.random.default_rng((seed, 1))
        seqs = random.permutation(5)[: random.integers(6)]
        numbers = random.integers(4, size=len(seqs))
        before = frozen(batched)
        copies = []
        try:
            for seq, number in zip(seqs, numbers, strict=True):
                copies += looped.append(int(seq), number)
        except AllocatorError as error:
            outcomes.add(type(error))
            with pytest.raises(AllocatorError):
                batched.append_batch(seqs, numbers)
            assert frozen(batched) == before
        else:
            outcomes.add(len(copies))
            copied = batched.append_batch(seqs, numbers)
            assert pattern(batched, copied) == pattern(looped, copies)
            assert batched.num_free_blocks() == looped.num_free_blocks()
            assert len(batched._index._cached) == len(looped._index._cached)
    assert {OutOfBlocks, UnknownSequence, InvalidLength, 0, 1, 2} <= outcomes


def test_of_sharers_that_all_write_the_last_needs_no_copy():
    """Three tables with one half-filled block take two copies."""
    pool = TorchPaged(Geometry(3, 2), device="cpu")
    pool.allocate(0, 1)
    pool.fork(0, 1)
    pool.fork(0, 2)
    copies = pool.append_batch((2, 0, 1), 1)
    assert [copy.destination for copy in copies] == [pool.block_table(s)[0] for s in (2, 0)]
    assert pool.block_table(1)[0] == copies[0].source == copies[1].source


@pytest.mark.parametrize(
    ("seqs", "numbers"),
    [
        ([1, 1], 1),
        ([1, 7], 1),
        ([1, 2], [1]),
        ([1, 2], torch.tensor([1])),
        ([1, 2], [1, 1, 1]),
        ([1, 2], [1, -1]),
        ([1, 2], -1),
        ([1, 2], [1, 0.5]),
        ([1, 2], None),
        ([1, 2], np.array([[1, 1]])),
        ([1, 2], [1, 100]),
        (None, 1),
        ([1, "b"], 1),
    ],
    ids=str,
)
def test_a_batch_that_makes_no_sense_changes_nothing(seqs, numbers):
    """Names twice or unknown, numbers too few, too many or none: an `AllocatorError`."""
    pool = TorchPaged(Geometry(8, 2, max_tokens=10), device="cpu")
    pool.allocate(1, 1)
    pool.allocate(2, 1)
    before = frozen(pool)
    with pytest.raises(AllocatorError):
        pool.append_batch(seqs, numbers)
    assert frozen(pool) == before


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_a_batch_takes_any_array(kind):
    """One number for all, of any integer type, or one each; and nobody at all."""
    pool = TorchPaged(Geometry(8, 2), device="cpu")
    pool.allocate(1, 1)
    pool.allocate(2, 1)
    pool.append_batch(kind([1, 2]), kind([1, 2]))
    pool.append_batch(kind([2, 1]), np.int64(2))
    pool.append_batch(kind([2]), np.array(1))
    pool.append_batch(kind([]), 5)
    pool.append_batch([], kind([]))
    assert len(pool.block_table(1)), len(pool.block_table(2)) == (2, 3)


# Admission, introspection and resize.


@pytest.mark.parametrize("device", DEVICES)
def test_admission_counts_cached_blocks_as_free(device):
    """OK is kept, LATER is a matter of time, NEVER of the present size."""
    pool = TorchPaged(Geometry(4, 2, max_tokens=10), device=device)
    cached(pool, 1, [1, 2, 3, 4])
    assert pool.can_allocate(8) is Admission.OK
    pool.allocate(2, 1)
    assert pool.can_allocate(8) is Admission.LATER
    assert pool.can_allocate(9) is Admission.NEVER
    pool.resize(5)
    assert pool.can_allocate(10) is Admission.LATER
    assert pool.can_allocate(11) is Admission.NEVER
    pool.free(2)
    pool.allocate(2, 10)


def test_counts_are_those_of_live_tables():
    """Neither leases, nor the cache, nor the host count; other blocks do not exist."""
    pool = TorchPaged(Geometry(4, 2, num_host_blocks=1), device="cpu")
    pool.allocate_prompt(1, [1, 2])
    [block] = pool.block_table(1)
    fill(pool, 1, [1, 2])
    pool.begin_transfer(1)
    pool.fork(1, 2)
    assert pool.ref_count(block) == 2
    pool.swap_out(1)
    assert pool.ref_count(block) == 1
    pool.free(2)
    assert pool.ref_count(block) == 0
    assert sorted([*pool.free_blocks(), block]) == [0, 1, 2, 3]
    for stranger in (-1, 4):
        with pytest.raises(AllocatorError):
            pool.ref_count(stranger)


@pytest.mark.parametrize("device", DEVICES)
def test_contents_survive_a_resize(device):
    """Live and cached blocks stay what they are; cached ones beyond the end are given up."""
    pool = TorchPaged(Geometry(4, 2), device=device)
    pool.allocate(0, 2)  # block 3
    pool.allocate(1, 3)  # blocks 1 and 2
    pool.write(1, 0, rows(1, 2, 3))
    cached(pool, 2, [5, 6])  # block 0
    table = pool.block_table(1)
    before = frozen(pool)
    with pytest.raises(OutOfBlocks):
        pool.resize(3)
    for size in (0, -1, 1.5):
        with pytest.raises(InvalidLength):
            pool.resize(size)
    assert frozen(pool) == before
    pool.free(0)
    pool.resize(3)
    assert (pool.free_blocks(), pool.lookup([5, 6])) == ([0], 2)
    pool.resize(40)
    assert pool.num_free_blocks() == len(set(pool.free_blocks())) == 38
    assert (pool.block_table(1), tokens_of(pool, 1)) == (table, [1, 2, 3])
    assert pool.allocate_prompt(3, [5, 6, 7]) == 2
    assert tokens_of(pool, 3)[:2] == [5, 6]
    pool.append(3, 73)
    pool.write(3, 74, rows(8, 9))
    assert sorted(pool.block_table(1) + pool.block_table(3)) == list(range(40))
    assert tokens_of(pool, 3)[-2:] == [8, 9]


@pytest.mark.parametrize("device", DEVICES)
def test_a_smaller_pool_gives_up_what_is_cached_beyond_its_end(device):
    """Idle blocks do not stand in the way, those of tables and leases do."""
    pool = TorchPaged(Geometry(4, 2), device=device)
    cached(pool, 1, [1, 2, 3, 4, 5, 6])
    assert pool.allocate_prompt(2, [1, 2, 3]) == 2
    pool.truncate(2, 2)
    [block] = pool.block_table(2)
    lease = pool.begin_transfer(2)
    pool.free(2)
    with pytest.raises(OutOfBlocks):
        pool.resize(block)
    assert pool.lookup([1, 2, 3, 4, 5, 6]) == 6
    pool.resize(block + 1)
    assert pool.lookup([1, 2, 3, 4, 5, 6]) == 2
    assert pool.num_free_blocks() == block
    pool.end_transfer(lease)
    pool.resize(1)
    assert (pool.free_blocks(), pool.lookup([1, 2])) == ([0], 0)
    assert pool.can_allocate(3) is Admission.NEVER


# Groups.

HYBRID = Geometry(
    4,
    4,
    max_tokens=40,
    groups=[Group(4), Group(2, window=3), Group(2, window=2, num_blocks=3)],
)


@pytest.mark.parametrize("device", DEVICES)
def test_each_group_has_its_own_table(device):
    """Block sizes and windows differ, pools are shared or not, ids are numbered through."""
    pool = TorchPaged(HYBRID, device=device)
    pool.allocate(1, 4)
    tables = [pool.block_table(1, group) for group in range(3)]
    assert [len(table) for table in tables] == [1, 2, 2]
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (1, 1)
    assert set(tables[0] + tables[1]) < set(range(4))
    assert set(tables[2]) < set(range(4, 7))
    assert sorted([*pool.free_blocks(), *chain(*tables)]) == list(range(7))
    pool.append(1, 1)
    assert [entry is None for entry in pool.block_table(1, 1)] == [True, False, False]
    assert [entry is None for entry in pool.block_table(1, 2)] == [True, False, False]
    pool.fork(1, 2)
    assert pool.ref_count(pool.block_table(1, 2)[2]) == 2
    lease = pool.begin_transfer(2)
    pool.free(2)
    pool.free(1)
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (0, 1)
    pool.end_transfer(lease)
    assert sorted(pool.free_blocks()) == list(range(7))


@pytest.mark.parametrize("device", DEVICES)
def test_groups_copy_each_its_own_block(device):
    """One append may take a copy in each group, in their order."""
    pool = TorchPaged(Geometry(4, 2, groups=[Group(2), Group(4, num_blocks=2)]), device=device)
    pool.allocate(1, 3)
    pool.fork(1, 2)
    copies = pool.append(2, 1)
    assert copies == (
        (pool.block_table(1)[1], pool.block_table(2)[1]),
        (pool.block_table(1, 1)[0], pool.block_table(2, 1)[0]),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_lack_in_one_pool_leaves_all_pools(device):
    """All or nothing across groups, in single calls and in batches."""
    pool = TorchPaged(Geometry(9, 2, groups=[Group(2), Group(2, num_blocks=3)]), device=device)
    pool.allocate(1, 2)
    pool.allocate(2, 2)
    before = frozen(pool)
    for call in (
        lambda: pool.allocate(3, 3),
        lambda: pool.append(1, 3),
        lambda: pool.append_batch([1, 2], 1),
    ):
        with pytest.raises(OutOfBlocks):
            call()
    assert frozen(pool) == before
    assert pool.can_allocate(2) is Admission.OK
    assert pool.can_allocate(3) is Admission.LATER
    assert pool.can_allocate(7) is Admission.NEVER


def test_groups_have_tables_only():
    """Contents in groups are nobody's: the calls that need some are `AllocatorError`s."""
    pool = TorchPaged(HYBRID, device="cpu")
    pool.allocate(1, 2)
    before = frozen(pool)
    for call in (
        lambda: pool.allocate_prompt(2, [1]),
        lambda: pool.lookup([1]),
        lambda: pool.write(1, 0, rows(1)),
        lambda: pool.read(1),
        lambda: see(pool, 1),
        lambda: pool.swap_out(1),
        lambda: pool.resize(3),
    ):
        with pytest.raises(AllocatorError):
            call()
    assert frozen(pool) == before


# Injected faults.


class Faults:
    """A checkpoint that fails at the `at`-th call, counted from when it is set."""

    def __init__(self):
        self.at = None
        self.points = []

    def __call__(self, point):
        self.points.append(point)
        if len(self.points) == self.at:
            raise InjectedFault(point)


def crowded(geometry, checkpoint):
    """A pool with forks, cached and leased blocks, one sequence on the host, and little free."""
    pool = TorchPaged(geometry, device="cpu", checkpoint=checkpoint)
    pool.allocate(1, 7)
    if geometry.groups is None:
        pool.write(1, 0, rows(*range(7)))
    pool.fork(1, 2)
    pool.fork(1, 3)
    pool.append(3, 1)
    pool.end_transfer(pool.begin_transfer(1))
    if geometry.groups is not None:
        return pool
    pool.allocate(4, 4)
    pool.write(4, 0, rows(*range(40, 44)))
    pool.swap_out(4)
    cached(pool, 5, [1, 2, 3, 4])
    pool.allocate_prompt(6, [1, 2, 5, 6, 7])
    fill(pool, 6, [1, 2, 5, 6, 7], 2)
    pool.truncate(6, 3)
    cached(pool, 7, [8, 9, 10, 11, 12, 13])
    pool.begin_transfer(3)
    return pool


PLAIN = Geometry(14, 2, num_host_blocks=6)
WINDOWED = Geometry(14, 2, num_host_blocks=6, window=3)
GROUPED = Geometry(40, 2, groups=[Group(2), Group(1, window=3), Group(2, num_blocks=18)])
MUTATORS = {
    "allocate": lambda pool: pool.allocate(10, 8),
    "append": lambda pool: pool.append(1, 5),
    "append_batch": lambda pool: pool.append_batch([1, 2, 3], [3, 1, 2]),
    "fork": lambda pool: pool.fork(1, 10),
    "begin_transfer": lambda pool: pool.begin_transfer(1) and None,
    "allocate_prompt": lambda pool: pool.allocate_prompt(10, [1, 2, 3, 4, 5, 6, 7]),
    "append_tokens": lambda pool: pool.append_tokens(6, [7, 8, 9]),
    "mark_written": lambda pool: pool.mark_written(11, 6),
    "swap_out": lambda pool: pool.swap_out(1),
    "swap_in": lambda pool: pool.swap_in(4),
    "grow": lambda pool: pool.resize(20),
    "shrink": lambda pool: pool.resize(1),
}


@pytest.mark.parametrize(
    ("geometry", "mutator"),
    [
        *((geometry, mutator) for geometry in (PLAIN, WINDOWED) for mutator in MUTATORS),
        *((GROUPED, mutator) for mutator in list(MUTATORS)[:5]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_at_any_checkpoint_leaves_everything_as_it_was(geometry, mutator):
    """All tensors and numbers, contents and the order of eviction; the next try then succeeds."""
    faults, mutate = Faults(), MUTATORS[mutator]
    pool, twin = crowded(geometry, faults), crowded(geometry, lambda point: None)
    for each in (pool, twin):
        if mutator == "mark_written":
            each.allocate_prompt(11, [21, 22, 23, 24, 25, 26])
        if mutator == "shrink":
            for seq in [*each._sequences]:
                each.free(seq)
            each.allocate_prompt(12, [1])
            each.free(12)
            each._pools[0].leases.zero_()  # end whatever lease
    before = frozen(pool)
    for k in range(1, 50):
        faults.at, faults.points = k, []
        try:
            answer = mutate(pool)
        except InjectedFault:
            assert frozen(pool) == before
        else:
            break
    assert k - 1 == len(faults.points) > 0
    assert answer == mutate(twin)
    for seq in twin._sequences:
        assert pool.block_table(seq) == twin.block_table(seq)
    assert pool.free_blocks() == twin.free_blocks()


def test_a_fault_between_two_rows_leaves_the_rows():
    """Where the tables had to grow, they are what they were."""
    faults = Faults()
    pool = TorchPaged(Geometry(64, 1), device="cpu", checkpoint=faults)
    for seq in range(8):
        pool.allocate(seq, 1)
    before = frozen(pool)
    faults.at, faults.points = 30, []
    with pytest.raises(InjectedFault):
        pool.allocate(8, 40)
    assert frozen(pool) == before


def test_a_checkpoint_changes_no_answer():
    """With one that never fails, random histories are what they are without."""

    def played(checkpoint):
        random = np.random.default_rng(0)
        pool = TorchPaged(Geometry(9, 2, num_host_blocks=3), device="cpu", checkpoint=checkpoint)
        answers = []
        for _ in range(300):
            seq, other = (int(number) for number in random.integers(4, size=2))
            tokens = random.integers(2, size=random.integers(8)).tolist()
            calls = (
                (pool.allocate_prompt, seq, tokens),
                (pool.append_tokens, seq, tokens),
                (pool.mark_written, seq, len(tokens)),
                (pool.fork, seq, other),
                (pool.truncate, seq, len(tokens)),
                (pool.free, seq),
                (pool.swap_out, seq),
                (pool.swap_in, seq),
            )
            call, *arguments = calls[random.integers(len(calls))]
            try:
                answer = call(*arguments)
            except AllocatorError as error:
                answer = type(error)
            # Which blocks it takes may differ: one at a time, it begins at the other end.
            answers.append(len(answer) if isinstance(answer, tuple) else answer)
            answers.append(pool.num_free_blocks())
        return answers

    assert played(None) == played(lambda point: None)


# ------------------------------------------------------------------------------ its fingerprint


def calls(pool, leases, ids=(0, 1)):
    """Every call that one might try next, by name, as a function of a pool and its leases."""
    found = {}

    def one(name, *arguments):
        found[name, *arguments] = lambda pool, leases: getattr(pool, name)(*arguments)

    for seq in ids:
        for tokens in range(4):
            for name in ("allocate", "append", "truncate", "mark_written"):
                one(name, seq, tokens)
        for name in ("free", "swap_out", "swap_in"):
            one(name, seq)
        for prompt in ((1, 1, 1), (1, 1, 2)):
            one("allocate_prompt", seq, prompt, "a")
            one("append_tokens", seq, prompt[:2])
        found["begin_transfer", seq] = lambda pool, leases, seq=seq: leases.append(
            pool.begin_transfer(seq)
        )
    for parent, child in ((0, 1), (1, 0)):
        one("fork", parent, child)
    one("append_batch", ids, 1)
    one("lookup", (1, 1, 1, 1), "a")
    one("reset_prefix_cache")
    one("resize", 3)
    one("resize", 4)
    if leases:
        found[("end_transfer",)] = lambda pool, leases: pool.end_transfer(leases.pop(0))
    return found


def told(story):
    """A fresh pool with its open leases after a story, and what the last call was answered."""
    pool, leases, answer = TorchPaged(Geometry(4, 2, num_host_blocks=2), device="cpu"), [], None
    for call in story:
        try:
            answer = call(pool, leases)
        except AllocatorError as error:
            answer = type(error)
    return pool, leases, answer


def shown(pool, leases):
    """The fingerprint, and the blocks of the leases, which are the caller's."""
    return repr((pool.fingerprint(), [lease.blocks[0].tolist() for lease in leases]))


def left_out(pool):
    """What makes no difference: what lay on the stack, the clock, and the numbers of the rows."""
    [blocks] = pool._pools
    rows = [(seq, state.row) for seq, state in sorted(pool._sequences.items())]
    return blocks.stack[blocks.top :].tolist(), blocks.clock, rows


def test_pools_with_the_same_fingerprint_go_on_alike():
    """Whatever is called next is answered the same, and leads to the same fingerprint again."""
    random, known, compared = Random(7), {}, 0
    for _ in range(150):
        story = []
        for _ in range(16):
            pool, leases, _ = told(story)
            other = known.setdefault(shown(pool, leases), story)
            if compared < 60 and left_out(told(other)[0]) != left_out(pool):
                compared += 1
                for name, call in calls(pool, leases).items():
                    ends = [told([*one, call]) for one in (story, other)]
                    (mine, left, said), (theirs, kept, heard) = ends
                    assert said == heard, name
                    assert shown(mine, left) == shown(theirs, kept), name
            ahead = [*calls(pool, leases).values()]
            random.shuffle(ahead)
            right = (call for call in ahead if not isinstance(told([*story, call])[2], type))
            story = [*story, next(right)]
    assert compared == 60


CACHED = [
    ("allocate_prompt", 2, (1, 1)),
    ("mark_written", 2, 2),
    ("allocate_prompt", 3, (2, 2)),
    ("mark_written", 3, 2),
]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The order of the free blocks.
        ([("free", 0), ("free", 1)], [("free", 1), ("free", 0)]),
        ([("append", 0, 1)], [("append", 1, 1)]),
        ([("truncate", 0, 1)], [("truncate", 0, 0)]),
        ([("mark_written", 0, 1)], [("mark_written", 0, 2)]),
        # What is cached, and in which order what nobody uses goes.
        ([*CACHED[:1]], [*CACHED[:2]]),
        ([*CACHED, ("free", 2), ("free", 3)], [*CACHED, ("free", 3), ("free", 2)]),
        ([("begin_transfer", 0)], [("begin_transfer", 1)]),
        ([("write", 0, 0, [[1.0] * 32])], [("write", 0, 0, [[2.0] * 32])]),
    ],
)
def test_pools_that_may_go_on_differently_have_other_fingerprints(first, second):
    prints = []
    for calls_ in (first, second):
        pool = TorchPaged(Geometry(5, 2), device="cpu")
        pool.allocate(0, 2)
        pool.allocate(1, 2)
        for name, *arguments in calls_:
            getattr(pool, name)(*arguments)
        prints.append(repr(pool.fingerprint()))
    assert prints[0] != prints[1]
