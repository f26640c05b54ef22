"""The page "What verified means here" says what the data say, and no more."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

from kvspec.rooms import LAWS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "verified.md").read_text(encoding="utf-8")
RUNS = json.loads((DOCS / "data" / "runs.json").read_text(encoding="utf-8"))
WANTED = runpy.run_path(str(DOCS / "verified_runs.py"))["runs"]()


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
    for path in [DOCS / "verified.py", *(DOCS / "data").iterdir()]:
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


def test_every_command_was_carried_out():
    """None ended with a broken law or a vacuous one; only a scope may have been stopped."""
    assert list(RUNS) == list(WANTED)
    for name, run in WANTED.items():
        assert RUNS[name]["command"] == f"kvspec {run.command}"
        if RUNS[name]["exit_code"] is None:
            assert run.limit is not None
            assert not (DOCS / "data" / f"{name}.json").exists()
        else:
            assert RUNS[name]["exit_code"] == 0
            assert (DOCS / "data" / f"{name}.json").is_file()


def test_every_capability_was_explored_by_each_as_far_as_it_can_be():
    """Alone where the specification lists its choices, and with both allocators."""
    ends = {name.rstrip("-0123456789") for name, run in RUNS.items() if run["exit_code"] == 0}
    for who in ("reference", "torch"):
        assert {f"{who}-{name}" for name in EXPLORED} <= ends
    assert {f"alone-{name}" for name in EXPLORED if name not in UNLISTED} <= ends


EXPLORED = (
    "rollback",
    "reservation",
    "prefix",
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
