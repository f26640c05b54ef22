"""The page on waste says what was measured, and its figures are made of committed data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvimpls.waste import parse_schemes, prefix_hits, read, replay, tables

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
MEASURED = json.loads((FIGURES / "waste.json").read_text(encoding="utf-8"))
TRACES = os.environ.get("KVSPEC_TRACES")
"""A folder with the traces; they are licensed by others, and no part of this project."""

needs_traces = pytest.mark.skipif(TRACES is None, reason="KVSPEC_TRACES names no folder of traces")


def measured(name):
    return next(trace for trace in MEASURED["traces"] if trace["trace"]["name"] == name)


def test_the_tables_are_fresh():
    """They are what waste.json makes them."""
    script = [sys.executable, str(FIGURES / "waste.py"), "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["waste-schemes.png", "waste-map.png"])
def test_the_pictures_are_small(name):
    """A page is to be read, not waited for."""
    content = (FIGURES / name).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 100_000


def test_the_sums_add_up():
    """In every row of the data, over all steps as over the window."""
    rows = [(t["capacity"], row) for t in MEASURED["traces"] for row in t["schemes"]]
    assert len(rows) == 73
    for capacity, row in rows:
        for sums in (row["total"], row["window"]):
            parts = sums["stored"] + sums["future"] + sums["internal"] + sums["free"]
            assert parts == capacity * sums["steps"]


@needs_traces
@pytest.mark.parametrize("name", [trace["trace"]["name"] for trace in MEASURED["traces"]])
def test_the_traces_are_those_that_were_measured(name):
    """Requests, tokens, the longest, and the prefix hits."""
    trace = read(Path(TRACES or "") / name)
    wanted = measured(name)
    hits = prefix_hits(trace, wanted["capacity"])
    data = tables.as_data(trace, wanted["capacity"], None, hits, [])
    assert data == {**wanted, "schemes": []}


@needs_traces
@pytest.mark.parametrize("scheme", ["prealloc:8192", "oracle:bf", "growp2:ff", "paged:16"])
def test_the_azure_code_trace_comes_out_again(scheme):
    """To the last digit, in a few seconds."""
    wanted = measured("azure_llm_2023_code.csv")
    [chosen] = parse_schemes(scheme)
    trace = read(Path(TRACES or "") / "azure_llm_2023_code.csv")
    result = replay(trace, chosen, wanted["capacity"])
    assert result.as_data() == next(r for r in wanted["schemes"] if r["scheme"] == scheme)
