"""The torch allocator: where its state lives, and what the K/V data in it go through."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from kvimpls.torch_paged import TorchPaged  # noqa: E402 (only where torch is installed)
from kvspec import (  # noqa: E402 (the same)
    Admission,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    UnknownLease,
    UnknownSequence,
    UnsupportedGeometry,
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


def tensors(pool):
    """The tensors of a pool's state, by attribute."""
    return {k: v for k, v in vars(pool).items() if isinstance(v, torch.Tensor)}


def frozen(pool):
    """All of a pool's state, as a value."""
    return {
        k: v.tolist() if isinstance(v, torch.Tensor) else repr(v) for k, v in vars(pool).items()
    }


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
    """The instance has tensors, sizes and a map from sequences to rows, and nothing else."""
    held = {k: v for k, v in vars(busy).items() if k not in tensors(busy)}
    rows_of = held.pop("_rows")
    assert {type(v) for v in held.values()} <= {int, np.dtype, type(busy.dtype)}
    assert sorted(rows_of) == [*range(5), *range(6, 20), 2**31 - 1]
    assert len(set(rows_of.values())) == len(rows_of)  # rows: each once, though blocks are shared
    assert set(rows_of.values()) <= set(range(len(busy._tables)))
    for attribute in ("_tables", "_lengths", "_limits", "_users", "_leases", "_stack"):
        assert tensors(busy)[attribute].dtype == torch.int64, attribute


def test_tables_hold_the_blocks_of_live_sequences_only(busy):
    """Beyond a sequence's blocks, and in spare rows, every table entry is -1."""
    entries = sorted(busy._tables[busy._tables != -1].tolist())
    assert entries == sorted(block for seq in busy._rows for block in busy.block_table(seq))


def test_a_lease_holds_a_tensor(busy):
    """A lease keeps its blocks as a tensor of its own, which later appends do not change."""
    lease = busy.begin_transfer(0)
    before = lease.blocks.tolist()
    busy.append(0, 4)
    assert isinstance(lease.blocks, torch.Tensor)
    assert lease.blocks.tolist() == before


def test_no_python_loop_over_a_sequence():
    """A sequence 256 times as long takes as many torch operations."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    def calls(tokens):
        pool = TorchPaged(Geometry(1024, 4), device="cpu")
        values = np.zeros((tokens, 32), dtype=np.float16)
        with Count() as count:
            pool.allocate(1, tokens)
            pool.write(1, 0, values)
            pool.fork(1, 2)
            pool.append(2, tokens)
            pool.read(2)
            pool.attend(2, np.zeros((4, 8)))
            pool.block_table(2)
            pool.end_transfer(pool.begin_transfer(2))
            pool.free(1)
        return count.calls

    assert calls(7) == calls(7 * 256 + 3)


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
            assert pool._pool[slot].tolist() == [token] * 32


@pytest.mark.parametrize("device", DEVICES)
def test_a_leased_block_is_not_handed_out_on_any_device(device):
    """Blocks of a freed sequence stay in flight until the last of its leases has ended."""
    pool = TorchPaged(Geometry(3, 2), device=device)
    assert pool._pool.device.type == pool._tables.device.type == device
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
    assert TorchPaged(Geometry(2, 2))._pool.device.type == "meta"
    assert TorchPaged(Geometry(2, 2), device="cpu")._pool.device.type == "cpu"
    monkeypatch.setenv("KVSPEC_DEVICE", "")
    assert TorchPaged(Geometry(2, 2))._pool.device.type == "cpu"


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


@pytest.mark.parametrize(
    "geometry", [Geometry(2, 2, window=3), Geometry(2, 2, num_host_blocks=1)], ids=str
)
def test_what_it_cannot_do_is_an_unsupported_geometry(geometry):
    """A window or host blocks are refused at once."""
    with pytest.raises(UnsupportedGeometry):
        TorchPaged(geometry)


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
