"""`kvspec waste`: what it prints and writes, and what it refuses in one line."""

import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvimpls.waste.command import waste

SAMPLES = Path(__file__).parent / "samples"
EXAMPLE = str(SAMPLES / "worked-example.csv")
SMALL = ("--capacity", "24", "--schemes", "prealloc:9,oracle,pow2:ff,buddy:oracle,paged:4,paged:1")


@click.group()
def main() -> None:
    """As `kvspec` is."""


main.add_command(waste)


def run(*arguments):
    return CliRunner().invoke(main, ["waste", *map(str, arguments)], prog_name="kvspec")


def cells(output, scheme):
    """The rows of a scheme, over all tables."""
    rows = [line for line in output.splitlines() if line.startswith(f"│ {scheme} ")]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def test_the_worked_example_is_printed():
    """One row a scheme in each of the two tables."""
    done = run(EXAMPLE, *SMALL)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(
        "worked-example.csv: 5 requests, 20 prompt and 16 output tokens; capacity 24 tokens; "
        "backlog\n"
    )
    memory, events = cells(done.output, "paged:4")
    assert memory[-1] == "4"
    assert events == ["paged:4", "5", "0", "11", "3", "1", "6", "0"]
    assert cells(done.output, "prealloc:9")[0][6] == "–"
    assert max(map(len, done.output.splitlines())) <= 120


def test_the_json_has_all_sums(tmp_path):
    """The table's figures can be made of them, to the last digit, and they are the same again."""
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    for file in (first, second):
        assert run(EXAMPLE, *SMALL, "--json", file).exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    data = json.loads(first.read_text(encoding="utf-8"))
    assert data["trace"]["name"] == "worked-example.csv"
    assert (data["capacity"], data["arrivals"]) == (24, "backlog")
    rows = {row["scheme"]: row for row in data["schemes"]}
    paged = rows["paged:4"]
    assert paged["u_res"] == 127 / 160
    assert paged["total"]["reserved"] == 160
    window = paged["window"]
    assert paged["shares"]["stored"] == window["stored"] / (24 * window["steps"])
    assert paged["external_fragmentation_index"] is None
    assert rows["oracle:ff"]["external_fragmentation_index"] is not None
    assert str(tmp_path) not in first.read_text(encoding="utf-8")


def test_the_default_schemes_are_all_of_them():
    """Without options the families are compared in all their variants."""
    done = run(SAMPLES / "azure.csv")
    assert done.exit_code == 0, done.output
    schemes = [line.split()[1] for line in done.output.splitlines() if line.startswith("│")]
    once = schemes[: len(schemes) // 2]
    assert once == [
        *("prealloc:8192", "oracle:ff", "oracle:bf", "pow2:ff", "pow2:bf", "ondemand:ff"),
        *("ondemand:bf", "growp2:ff", "growp2:bf", "buddy:oracle", "buddy:pow2"),
        *("paged:256", "paged:16"),
    ]


def test_timed_arrivals_wait_for_nobody():
    """A queue that is always empty leaves no window, and a dash says so."""
    done = run(SAMPLES / "azure.csv", "--schemes=paged:4", "--arrivals=timed", "--step-seconds=0.5")
    assert done.exit_code == 0, done.output
    memory, events = cells(done.output, "paged:4")
    assert memory[1:6] == ["–"] * 5
    assert events[1:5] == ["5", "0", "172,811", "0"]


def test_prefix_hits_are_told_where_there_are_ids():
    """With an infinite cache and one of the capacity."""
    done = run(SAMPLES / "mooncake.jsonl", "--capacity", 2048, "--schemes=paged:16")
    assert done.exit_code == 0, done.output
    assert "60.93 with an infinite cache, 57.42 with an LRU cache of 2,048 tokens" in done.output


def test_a_limit_takes_the_head():
    """And says so by the number of requests."""
    assert run(EXAMPLE, *SMALL, "--limit", 2).output.startswith("worked-example.csv: 2 requests")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "waste: Missing argument 'TRACE'."),
        ([EXAMPLE, "--nonsense"], "waste: No such option"),
        ([EXAMPLE, "--schemes", "orcale"], "unknown scheme 'orcale'; there are prealloc:M,"),
        ([EXAMPLE, "--schemes", ""], "unknown scheme ''; there are "),
        ([EXAMPLE, "--schemes", "oracle:wf"], "unknown scheme 'oracle:wf'; there are "),
        ([EXAMPLE, "--schemes", "paged:0"], "paged:0: '0' is no whole number of tokens above 0"),
        ([EXAMPLE, "--schemes", "paged:-4"], "paged:-4: '-4' is no whole number of tokens"),
        ([EXAMPLE, "--schemes", "prealloc:"], "prealloc:: '' is no whole number of tokens"),
        ([EXAMPLE, "--schemes", "paged:16", "--capacity", "8"], "paged:16 needs a capacity of at"),
        ([EXAMPLE, "--capacity", "0"], "waste: Invalid value for '--capacity': '0' is no whole"),
        ([EXAMPLE, "--capacity", "-5"], "waste: Invalid value for '--capacity': '-5' is no whole"),
        ([EXAMPLE, "--capacity", "1e5"], "waste: Invalid value for '--capacity': '1e5' is no"),
        ([EXAMPLE, "--capacity", "9" * 15], "waste: Invalid value for '--capacity': 999"),
        ([EXAMPLE, "--block-size", "16,0"], "waste: Invalid value for '--block-size': '16,0' is"),
        ([EXAMPLE, "--block-size", "x"], "waste: Invalid value for '--block-size': 'x' is no list"),
        ([EXAMPLE, "--limit", "0"], "waste: Invalid value for '--limit': '0' is no whole number"),
        ([EXAMPLE, "--arrivals", "soon"], "waste: Invalid value for '--arrivals': 'soon' is not"),
        ([EXAMPLE, "--arrivals", "timed"], "--arrivals timed needs --step-seconds"),
        ([EXAMPLE, "--step-seconds", "1"], "--step-seconds has a meaning only with --arrivals"),
        (
            [EXAMPLE, "--arrivals", "timed", "--step-seconds", "1"],
            "worked-example.csv: the requests have no arrival times",
        ),
        (
            [EXAMPLE, "--arrivals", "timed", "--step-seconds", "0.0"],
            "waste: Invalid value for '--step-seconds': '0.0' is no number of seconds above 0",
        ),
        ([EXAMPLE, "--step-seconds", "nan"], "waste: Invalid value for '--step-seconds': 'nan'"),
        (["no-such-file.csv"], "no-such-file.csv: it cannot be read: No such file or directory"),
        ([EXAMPLE, "--json", "no/such/folder.json"], "no/such/folder.json: it cannot be written"),
        ([EXAMPLE, "--json", "."], ".: it cannot be written: it is a folder"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments, reason):
    """Exit code 2, nothing on the standard output, and one line that begins as all of kvspec's."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"kvspec: {reason}")
    assert done.stderr.count("\n") == 1


def test_a_row_that_cannot_be_read_writes_nothing(tmp_path):
    """The line is named, and what was there stays."""
    path, old = tmp_path / "t.csv", tmp_path / "old.json"
    path.write_text("num_prefill_tokens,num_decode_tokens\n1,2\n1,-2\n", encoding="utf-8")
    old.write_text("old", encoding="utf-8")
    done = run(path, "--json", old, "--schemes=paged:16")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"kvspec: {path}:3: num_decode_tokens is '-2'")
    assert sorted(tmp_path.iterdir()) == [old, path]
    assert old.read_text(encoding="utf-8") == "old"


def test_a_file_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    """A disk that is full leaves no half of a file."""

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    done = run(EXAMPLE, *SMALL, "--json", tmp_path / "out.json")
    assert done.exit_code == 2
    assert done.stderr.endswith("out.json: it cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_pictures_without_matplotlib_are_refused(tmp_path, monkeypatch):
    """Before the replay, with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(EXAMPLE, *SMALL, "--plots", tmp_path / "plots")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "kvspec: --plots needs matplotlib, which is not installed: pip install 'kvspec[plots]'\n"
    )
    assert list(tmp_path.iterdir()) == []
