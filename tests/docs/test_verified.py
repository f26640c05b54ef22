"""The page "What verified means here" says what the data say, and no more."""

import json
import re
import subprocess
import sys
from pathlib import Path

from kvspec.rooms import LAWS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "verified.md").read_text(encoding="utf-8")
RUNS = json.loads((DOCS / "data" / "runs.json").read_text(encoding="utf-8"))["runs"]


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


def test_every_law_has_a_row():
    """In the published order."""
    assert re.findall(r"^\| \[([\w-]+)\]\(laws", PAGE, re.MULTILINE) == [law.id for law in LAWS]


def test_every_command_was_carried_out():
    """None ended with a broken law or a vacuous one, and each has its data."""
    assert {run["exit_code"] for run in RUNS.values()} == {0}
    names = {path.stem for path in (DOCS / "data").glob("*.json")}
    assert set(RUNS) <= names
