"""The pictures are drawn without a display, and what they are drawn from is right."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvimpls.waste import Trace, parse_schemes, replay
from kvimpls.waste.command import waste
from kvimpls.waste.memory_map import coverage
from kvimpls.waste.record import BINS, MemoryMap, Series
from kvimpls.waste.runs import watched

SAMPLES = Path(__file__).parent / "samples"
PNG = b"\x89PNG\r\n\x1a\n"


def trace_of(*lengths):
    prompts, outputs = zip(*lengths, strict=True)
    return Trace("test", "arxiv", prompts, outputs)


def test_every_picture_is_drawn(tmp_path):
    """One a topic, and a map for each contiguous pool; twice the same bytes."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folders = [tmp_path / "a", tmp_path / "b"]
    schemes = "prealloc:9,oracle:ff,buddy:pow2,paged:4"
    for folder in folders:
        options = ["--capacity", "24", "--schemes", schemes, "--plots", str(folder)]
        done = CliRunner().invoke(waste, [str(SAMPLES / "worked-example.csv"), *options])
        assert done.exit_code == 0, done.output
        assert done.output.count("drew ") == 5
    files = sorted(path.name for path in folders[0].iterdir())
    assert files == [
        "block-size.png",
        "map-buddy-pow2.png",
        "map-oracle-ff.png",
        "schemes.png",
        "time.png",
    ]
    for name in files:
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first.startswith(PNG)
        assert first == second


def test_pictures_of_nothing_are_drawn(tmp_path):
    """No window, no request served, no block size that fits: still pictures, and no warning."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    options = ["--capacity", "4", "--schemes", "oracle:ff,paged:4", "--plots", str(tmp_path)]
    done = CliRunner().invoke(waste, [str(SAMPLES / "mooncake.jsonl"), *options])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "schemes.png").read_bytes().startswith(PNG)
    assert not (tmp_path / "block-size.png").exists()


def test_a_place_that_is_a_file_is_refused(tmp_path):
    """The pictures need a folder."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    place = tmp_path / "plots"
    place.write_text("", encoding="utf-8")
    done = CliRunner().invoke(waste, [str(SAMPLES / "azure.csv"), "--plots", str(place)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"kvspec: {place}: the pictures need a folder, and this is a file\n"


def test_a_series_has_every_step_while_it_is_short():
    """Stored tokens and running requests, as they were."""
    [scheme] = parse_schemes("oracle:ff")
    series = Series()
    result = replay(trace_of((3, 2), (5, 1)), scheme, 6, watch=series)
    assert series.times == list(range(result.total.steps))
    assert series.stored == [3, 4, 5, 5, 6, 0]
    assert series.running == [1, 1, 1, 1, 1, 0]


def test_a_long_series_is_joined():
    """Its means stay means: weighted by their steps they are the sums of the replay."""
    [scheme] = parse_schemes("paged:16")
    series = Series()
    arrivals = [0, 3 * BINS, 40 * BINS]
    trace = trace_of((5, 2 * BINS), (7, 100), (3, 1))
    result = replay(trace, scheme, 4096, arrivals=arrivals, watch=series)
    assert BINS / 2 < len(series.times) <= BINS
    ends = [*series.times[1:], series.steps]
    widths = np.array(ends) - np.array(series.times)
    assert np.dot(series.stored, widths) == pytest.approx(result.total.stored)
    assert np.dot(series.running, widths) == pytest.approx(result.total.running)


@pytest.mark.parametrize("scheme", ["oracle:ff", "pow2:bf", "ondemand:ff", "growp2:bf"])
def test_a_snapshot_is_the_whole_pool(scheme):
    """Extents and holes lie beside each other, and leave nothing out."""
    [chosen] = parse_schemes(scheme)
    memory = MemoryMap(stride=2, most=9)
    replay(trace_of(*[(3, 2), (5, 4), (4, 1), (6, 3), (2, 6)] * 3), chosen, 24, watch=memory)
    assert [shot.time for shot in memory.snapshots] == list(range(0, 18, 2))
    for shot in memory.snapshots:
        parts = sorted([(start, size) for start, size, _ in shot.extents] + list(shot.holes))
        assert [start for start, _ in parts] == [0, *(start + size for start, size in parts)][:-1]
        assert sum(parts[-1]) == 24
        assert shot.free == sum(size for _, size in shot.holes)
        assert shot.largest_hole == max([size for _, size in shot.holes], default=0)
        assert all(0 < stored <= reserved for _, reserved, stored in shot.extents)


def test_only_contiguous_pools_have_a_map():
    """A paged pool has no holes that matter, and rooms of a fixed size none either."""
    trace = trace_of((3, 2), (5, 4))
    schemes = parse_schemes("prealloc:9,oracle:ff,paged:4")
    runs = list(watched(trace, schemes, 24, draw=True))
    assert [run.memory is not None for run in runs] == [False, True, False]
    assert all(run.series is not None for run in runs)


def test_coverage_is_exact():
    """Parts of a row count by their length, and the whole is kept."""
    assert coverage([], 10, 5).tolist() == [0, 0, 0, 0, 0]
    assert coverage([(3, 4), (9, 1)], 10, 5) == pytest.approx([0, 0.5, 1, 0.5, 0.5])
    assert coverage([(1, 7)], 9, 2).sum() * 4.5 == pytest.approx(7)
