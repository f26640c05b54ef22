"""`kvspec symbolic` as it is run: all is confirmed or proved, all twins are refuted, in time."""

import json
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvspec.symbolic import flat, wide
from kvspec.symbolic.command import symbolic
from kvspec.symbolic.confirm import CONFIRMED, Part
from kvspec.symbolic.operations_twins import TWINS
from kvspec.symbolic.tiers import FAST

pytest.importorskip("crosshair", reason="CrossHair comes with kvspec[symbolic]")

STEPS = list(Part.of("steps", "kvspec.symbolic.steps", ()).obligations)


def ran(file: Path, *arguments: str) -> dict[str, Any]:
    """What the command writes, which must be content."""
    done = CliRunner().invoke(symbolic, [*arguments, "--json", str(file)])
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for result in data["results"]:
        assert result["problem"] == ""
        assert result["twins"]
        assert all(twin["refuted"] for twin in result["twins"])
        if result["part"] == "operations":
            # Each law is a proof of its own, and is refuted once, after a twin.
            assert set(result["details"].values()) == {"unsat"}
            assert sorted(twin["claim"] for twin in result["twins"]) == sorted(result["details"])
        else:
            assert result["verdict"] == CONFIRMED
    return data


def test_the_fast_tier_confirms_and_proves_everything_in_its_time(tmp_path: Path) -> None:
    """In 60 seconds of CPU; in the tools' literal words, each question with a refutation."""
    data = ran(tmp_path / "fast.json")
    assert data["tier"] == "fast"
    assert FAST.budget == 60
    assert 0 < data["cpu_seconds"] <= FAST.budget
    parts = [result["part"] for result in data["results"]]
    arithmetic = Part.of("arithmetic", "kvspec.symbolic.arithmetic", ()).obligations
    assert parts.count("arithmetic") == len(arithmetic)
    assert [r["name"] for r in data["results"] if r["part"] == "steps"] == STEPS
    operations = [r["name"] for r in data["results"] if r["part"] == "operations"]
    assert operations == list(dict.fromkeys(twin.of for twin in TWINS))


@pytest.mark.slow
def test_the_slow_tier_confirms_larger_shapes_too(tmp_path: Path) -> None:
    """All that the fast one does, and the same steps with more blocks a sequence."""
    data = ran(tmp_path / "slow.json", "--slow", "--only", "crosshair")
    assert data["tier"] == "slow"
    assert [r["name"] for r in data["results"] if r["part"] == "wide"] == STEPS
    proofs = ran(tmp_path / "proofs.json", "--slow", "--only", "z3")
    assert {result["part"] for result in proofs["results"]} == {"operations"}


def test_the_slow_tier_asks_the_same_in_a_larger_shape() -> None:
    """Its encoding is that of the fast tier, but for the two lines that fix the shape."""
    lines = zip(getsource(flat).splitlines(), wide.widened().splitlines(), strict=True)
    assert [line for line, other in lines if line != other] == [
        written for written, _ in wide.SHAPE
    ]
    assert vars(wide)["ENTRIES"] > flat.ENTRIES
    asked = Part.of("wide", "kvspec.symbolic.steps", (), wide.INSTEAD).source
    assert "from kvspec.symbolic.wide import" in asked
    assert "kvspec.symbolic.flat" not in asked
