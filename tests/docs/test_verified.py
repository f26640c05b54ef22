"""The page "What verified means here" says what the data say, and no more."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kvspec.contract import Contract
from kvspec.engines.scope import Scope
from kvspec.geometry import Geometry
from kvspec.rooms import LAWS, specification
from kvspec.traces.trace import CONVERTER

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "verified.md").read_text(encoding="utf-8")
RUNS = json.loads((DOCS / "data" / "runs.json").read_text(encoding="utf-8"))
MAKER = runpy.run_path(str(DOCS / "verified_runs.py"))
WANTED = MAKER["runs"]()
SCOPES = {name: run for name, run in WANTED.items() if run.limit is not None}


def test_the_page_is_fresh():
    """`python docs/verified.py` makes it from `docs/data/`."""
    done = subprocess.run(
        [sys.executable, DOCS / "verified.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_page_is_found(tmp_path):
    """A number that the data do not have is exit code 1."""
    folder = tmp_path / "docs"
    (folder / "data").mkdir(parents=True)
    for path in [DOCS / "verified.py", DOCS / "verified_runs.py", *(DOCS / "data").iterdir()]:
        (folder / path.relative_to(DOCS)).write_bytes(path.read_bytes())
    (folder / "verified.md").write_text(PAGE.replace("states", "States"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, folder / "verified.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "stale" in done.stderr


def test_every_law_has_a_row_and_a_section():
    """In the published order; and in the section a command, its time and what is assumed."""
    laws = [law.id for law in LAWS]
    assert re.findall(r"^\| \[([\w-]+)\]\(#", PAGE, re.MULTILINE) == laws
    assert re.findall(r"^### ([\w-]+)$", PAGE, re.MULTILINE) == laws
    for section in PAGE.split("\n### ")[1:]:
        rows = re.findall(r"^\| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
        assert rows[0] == "word | by what, how far | command | CPU, s | assumed"
        assert len(rows) > 1
        for row in rows[1:]:
            *_, command, seconds, assumed = row.split(" | ")
            assert command.startswith("`kvspec ")
            assert float(seconds) > 0
            assert assumed


def test_every_command_was_carried_out_but_for_scopes_that_the_page_names():
    """None ended with a broken law or a vacuous one; only a scope may have been stopped."""
    assert list(RUNS) == [name for name in WANTED if name in RUNS]
    for name, run in WANTED.items():
        if name not in RUNS:
            assert name in SCOPES
            assert re.search(rf"not yet tried: [^|]*`kvspec {re.escape(run.command)}`", PAGE)
            continue
        assert RUNS[name]["command"] == f"kvspec {run.command}"
        if RUNS[name]["exit_code"] is None:
            assert run.limit is not None
            assert not (DOCS / "data" / f"{name}.json").exists()
        else:
            assert RUNS[name]["exit_code"] == 0
            assert (DOCS / "data" / f"{name}.json").is_file()


def kind(name):
    """Who explored what, without how far."""
    return name.rstrip("-0123456789")


@pytest.mark.parametrize("name", dict.fromkeys(map(kind, SCOPES)))
def test_what_is_explored_ends_with_a_scope_that_was_stopped(name):
    """Or with one that was not yet tried, so that none is called the largest without reason."""
    scopes = [scope for scope in SCOPES if kind(scope) == name]
    stopped = [s for s in scopes if s in RUNS and RUNS[s]["exit_code"] is None]
    assert stopped or scopes[-1] not in RUNS


@pytest.mark.parametrize("name", ["alone-groups-6-3", "reference-window-4-2"])
def test_what_is_quickly_explored_again_comes_to_the_same(name):
    """Else the data are older than the specification, and those of all other commands may be."""
    again, before = (
        {**data, "searches": [{**search, "seconds": None} for search in data["searches"]]}
        for data in (
            MAKER["carried_out"](WANTED[name]).data,
            json.loads((DOCS / "data" / f"{name}.json").read_text(encoding="utf-8")),
        )
    )
    assert again == before


@pytest.mark.parametrize("name", [name for name in SCOPES if name in RUNS])
def test_what_was_explored_is_as_the_specification_says_it_today(name):
    """Its contract has the fields that contracts have, and its scope is in the same words."""
    path = DOCS / "data" / f"{name}.json"
    if not path.is_file():
        assert RUNS[name]["exit_code"] is None
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    contract = CONVERTER.structure(data["contract"], Contract)
    geometry = CONVERTER.structure(data["geometry"], Geometry)
    assert CONVERTER.unstructure(contract) == data["contract"]
    spec = specification(geometry, contract, data["capabilities"])
    assert Scope(spec, data["sequences"]).bounds == data["scope"]


@pytest.mark.parametrize(
    ("does", "stopped"),
    [
        ("while True: pass", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", False),
    ],
)
def test_only_what_has_used_up_its_seconds_was_stopped_by_its_limit(does, stopped, tmp_path):
    """Another signal is no result."""
    path = tmp_path / "ends.py"
    path.write_text(f"{does}\n", encoding="utf-8")
    run = MAKER["Run"](f"check {path}:make", 4)
    if stopped:
        done = MAKER["carried_out"](run)
        assert (done.data, done.code < 0) == (None, True)
        assert done.busy > 3
    else:
        with pytest.raises(SystemExit, match="exit code -15"):
            MAKER["carried_out"](run)


def test_the_first_table_has_the_largest_scope_of_each_word(monkeypatch):
    """By blocks times sequences: 8/3 before 6/2, though that may have more states."""
    monkeypatch.syspath_prepend(DOCS)
    verified = runpy.run_path(str(DOCS / "verified.py"))
    runs, _ = verified["read_all"]()
    compared = 0
    for law in LAWS:
        for row in verified["rows"](law.id, runs):
            if row.word not in (verified["ALONE"], verified["DRIVEN"], verified["PRODUCT"]):
                continue
            bit = [
                run.extent[0]
                for run in runs.values()
                if "searches" in run.data
                and (run.search["mode"], run.who) == (row.word, row.who)
                and run.data["laws"].get(law.id, {}).get("bites")
            ]
            blocks, sequences = map(int, row.short.split("/"))
            assert blocks * sequences == max(bit)
            compared += len(bit) > 1
    assert compared


def test_every_capability_was_explored_by_each_as_far_as_it_can_be():
    """Alone where the specification lists its choices, and with both allocators."""
    ends = {name.rstrip("-0123456789") for name, run in RUNS.items() if run["exit_code"] == 0}
    for who in ("reference", "torch"):
        assert {f"{who}-{name}" for name in EXPLORED if name != "prefix-by-two"} <= ends
    assert {f"alone-{name}" for name in EXPLORED if name not in UNLISTED} <= ends


EXPLORED = (
    "rollback",
    "reservation",
    "prefix",
    "prefix-by-two",
    "eviction",
    "swap",
    "swap-lease",
    "window",
    "lease",
    "batch",
    "resize",
    "introspection",
    "groups",
    "injection",
    "store",
)
UNLISTED = ("injection", "store")
"""A fault is no choice of the specification's; and a store is data, of which it has none."""


def test_both_pages_say_the_same_of_what_is_confirmed_and_proved():
    """They are made of the same data by the same account."""
    symbolic = (DOCS / "symbolic.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(laws\.md.*?\) \| (.*) \| (.*) \|$", symbolic, re.MULTILINE
    )
    assert rows
    for law, confirmed, proved in rows:
        section = PAGE.split(f"\n### {law}\n")[1].split("\n### ")[0]
        for said in (*confirmed.split("; "), proved):
            assert said == "—" or said in section
