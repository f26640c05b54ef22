"""`kvspec check`: what is checked, by which contract, and what it ends with."""

import json
import os
import re
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvspec import Contract
from kvspec.driver.target import GROUP
from kvspec.rooms import LAWS
from kvspec.traces.trace import from_json, load

REFERENCE = "kvimpls.reference:Reference"
FORGETFUL = "kvimpls.museum:ForgottenCopyOnWrite"

ODD = """
import sys
from time import sleep

from kvimpls.reference import Reference
from kvspec import Contract, OutOfBlocks, Unspecified


class Vacuous(Reference):
    contract = Contract(capabilities=("core", "sharing"), reservation=Unspecified())

    def allocate(self, seq, num_tokens, *, limit=None):
        super().allocate(seq, num_tokens, limit=limit)
        super().free(seq)
        raise OutOfBlocks


class Picky(Reference):
    def __init__(self, geometry):
        if geometry.num_blocks != 4:
            raise ValueError("only\\nfour")
        super().__init__(geometry)


class Hanging(Reference):
    def append(self, seq, num_tokens):
        if num_tokens == 2:
            sleep(60)
        return super().append(seq, num_tokens)


class LeaksLate(Reference):
    calls = 0

    def free(self, seq):
        self.calls += 1
        if self.calls == 3 and self._free:
            self._free.pop()
        return super().free(seq)


class Interrupted(Reference):
    def append(self, seq, num_tokens):
        raise KeyboardInterrupt
"""


@pytest.fixture
def odd(folder):
    """A file of odd allocators."""
    Path("odd.py").write_text(ODD)
    return lambda name: f"odd.py:{name}"


@pytest.fixture
def registered(monkeypatch):
    """Registers other allocators than the installed ones."""

    def register(**targets):
        points = [EntryPoint(name, value, GROUP) for name, value in targets.items()]
        monkeypatch.setattr("kvspec.driver.target.entry_points", lambda group: points)

    return register


# ------------------------------------------------------------------------------ exit codes


def test_an_allocator_that_is_right_ends_with_0(check):
    """All claimed laws held: exit 0, and nothing on standard error."""
    done = check(REFERENCE)
    assert (done.code, done.err) == (0, "")
    promised = Contract(order="lru")
    for law in LAWS:
        claimed = law.capability not in ("store", "attention") and not law.idle(promised)
        verdict = r"held \d+/\d+" if claimed else "-"
        assert re.search(rf"^  {law.id} +{verdict}$", done.out, re.MULTILINE), law.id


def test_an_allocator_that_breaks_a_law_ends_with_1(check):
    """A broken law: exit 1, with the shortest story above the matrix."""
    done = check(FORGETFUL)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("copy-on-write: ")
    assert done.out.index("because: ") < done.out.index("\nlaw ")
    assert re.search(r"^  copy-on-write +BROKEN$", done.out, re.MULTILINE)
    assert re.search(r"^  read-back +not judged$", done.out, re.MULTILINE)


def test_an_allocator_that_no_law_bites_ends_with_3(check, odd):
    """An allocator that refuses everything is not green: exit 3."""
    done = check(odd("Vacuous"))
    assert done.code == 3
    assert re.search(r"^  frame +VACUOUS 0/0$", done.out, re.MULTILINE)


def test_broken_comes_before_vacuous(check, odd):
    """Exit 1 before 3, and the summary names both."""
    done = check(odd("Vacuous"), FORGETFUL)
    assert done.code == 1
    last = done.out.splitlines()[-1]
    assert last.startswith("0 of 2 allocators held every law that they claim; ")
    assert last.endswith(f"broken: {FORGETFUL}; vacuous: odd.py:Vacuous")


def test_what_fails_on_the_way_comes_before_broken_and_hides_nothing(check, odd):
    """Exit 2 before 1: one line says why, and the other allocators are reported all the same."""
    done = check(FORGETFUL, odd("Picky"), "--json", "all.json")
    assert done.refused().startswith("odd.py:Picky: the factory raised ValueError('only four')")
    assert "because: " in done.out
    assert "odd.py:Picky: not checked (" in done.out
    data = json.loads(Path("all.json").read_text())
    assert data["exit_code"] == 2
    assert [report["exit_code"] for report in data["allocators"]] == [1]
    assert [row["allocator"] for row in data["not_checked"]] == ["odd.py:Picky"]


def test_an_interrupted_check_is_no_broken_law(check, odd):
    """An interruption ends with 2, since nothing was found out."""
    assert check(odd("Interrupted")).refused() == "interrupted"


def test_a_hanging_call_breaks_a_law(check, odd):
    """A call that does not come back is an outcome: well-formed is broken, exit 1."""
    done = check(odd("Hanging"), "--call-timeout", 0.05)
    assert done.code == 1
    assert done.out.startswith("well-formed: ")
    assert "hangs" in done.out


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "x"])
def test_a_timeout_that_is_none_is_a_usage_error(kvspec, seconds):
    """Only a number of seconds above zero limits a call."""
    done = kvspec("check", REFERENCE, "--call-timeout", seconds)
    assert done.code == 2
    assert "Invalid value for '--call-timeout'" in done.err


@pytest.mark.parametrize(
    "arguments",
    [("--profile", "slow"), ("--seed", "x"), ("--nonsense",), ("--json", ".")],
    ids=lambda arguments: arguments[0],
)
def test_usage_errors_end_with_2(kvspec, arguments):
    """What click itself refuses could not be carried out either."""
    done = kvspec("check", REFERENCE, *arguments)
    assert done.code == 2
    assert done.err.startswith("Usage: ")


# ------------------------------------------------------------------------------ targets


def test_a_file_may_import_its_neighbour(check):
    """`path/to/file.py:factory` works where the file imports another one of its folder."""
    Path("there").mkdir()
    Path("there/neighbour.py").write_text("from kvimpls.reference import Reference as Near\n")
    Path("there/mine.py").write_text("from neighbour import Near\n\n\nclass Mine(Near): ...\n")
    done = check("there/mine.py:Mine")
    assert (done.code, done.err) == (0, "")


def test_several_targets_are_columns(check):
    """Each target has its column, whether it is a name, a module or a file."""
    Path("mine.py").write_text("from kvimpls.reference import Reference as Mine\n")
    done = check("reference", FORGETFUL, "mine.py:Mine")
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        "2 of 3 allocators held every law that they claim; "
        "broken: kvimpls.museum:ForgottenCopyOnWrite"
    )


def test_without_a_target_all_registered_ones_are_checked(check, registered):
    """A registered allocator whose dependency is missing is a row, and does not count."""
    Path("lacking.py").write_text("import no_such_package\n")
    registered(right=REFERENCE, lacking="lacking:Mine")
    done = check("--json", "all.json")
    assert (done.code, done.err) == (0, "")
    assert "lacking: not installed (it needs no_such_package, which is not installed)" in done.out
    data = json.loads(Path("all.json").read_text())
    assert [report["allocator"] for report in data["allocators"]] == ["right"]
    assert [row["allocator"] for row in data["not_installed"]] == ["lacking"]


def test_a_target_that_was_named_must_be_there(check, registered):
    """What is only a row when nobody asked for it is exit 2 when somebody did."""
    Path("lacking.py").write_text("import no_such_package\n")
    registered(lacking="lacking:Mine")
    assert "it needs no_such_package, which is not installed" in check("lacking").refused()


def test_nothing_to_check_is_not_green(check, registered):
    """Where no registered allocator is installed, the command could not be carried out."""
    Path("lacking.py").write_text("import no_such_package\n")
    registered(lacking="lacking:Mine")
    assert "not installed: lacking" in check().refused()
    registered()
    assert "no allocator is registered" in check().refused()


def test_a_registered_allocator_does_not_stand_in_the_way_of_others(check, registered):
    """One that cannot be imported is one line and exit 2, and the others are checked."""
    Path("wrong.py").write_text("1 / 0\n")
    registered(broken=FORGETFUL, wrong="wrong:Mine")
    done = check()
    assert done.refused().startswith("wrong: it cannot be imported: ZeroDivisionError")
    assert "because: " in done.out


# ------------------------------------------------------------------------------ files


def test_json_is_the_whole_report(check, folder):
    """`--json` has every law of every allocator, and the trace, which can be read back."""
    assert check("reference", FORGETFUL, "--json", "all.json", "--save-traces", "t").code == 1
    data = json.loads(Path("all.json").read_text(), parse_constant=pytest.fail)
    assert data["exit_code"] == 1
    right, broken = data["allocators"]
    for report in (right, broken):
        assert list(report["laws"]) == [law.id for law in LAWS]
        assert report["profile"] == "quick"
    assert right["trace"] is None
    assert {entry["verdict"] for entry in right["laws"].values()} == {"held", "not claimed"}
    assert broken["laws"]["copy-on-write"]["verdict"] == "broken"
    [saved] = Path("t").iterdir()
    assert from_json(json.dumps(broken["trace"])) == load(saved)
    assert sorted(p.name for p in folder.iterdir()) == ["all.json", "t"]


def test_json_goes_nowhere_before_the_check_begins(check):
    """A folder that does not exist is found out at once, not after the check."""
    assert "no/all.json: it cannot be written" in check("reference", "--json", "no/all.json").err


def test_json_is_whole_or_not_there(check, folder, monkeypatch):
    """When writing fails half way, the old file is as it was, and no part of a new one is left."""
    Path("all.json").write_text("old")

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    done = check(FORGETFUL, "--json", "all.json")
    assert done.refused() == "all.json: it cannot be written: No space left on device"
    assert [p.name for p in folder.iterdir()] == ["all.json"]
    assert Path("all.json").read_text() == "old"


def test_json_to_standard_output_comes_after_the_matrix(python, folder):
    """`--json /dev/stdout > file` loses nothing of either."""
    with Path("both.txt").open("w") as both:
        done = python(
            *("-m", "kvspec.cli", "check", FORGETFUL, "--json", "/dev/stdout"), stdout=both
        )
    text = Path("both.txt").read_text()
    assert done.code == 1
    assert text.startswith("copy-on-write: ")
    assert json.loads(text[text.index("\n{") :])["exit_code"] == 1


def test_json_to_a_device_leaves_the_device(check):
    """`--json /dev/null` writes to it, and does not put a file in its place."""
    assert check(FORGETFUL, "--json", "/dev/null").code == 1
    assert not Path("/dev/null").is_file()


def test_traces_that_cannot_be_saved_are_one_line(check):
    """A file where the folder should be: exit 2, after the story was shown."""
    Path("taken").write_text("")
    done = check(FORGETFUL, "--save-traces", "taken/traces")
    assert "it cannot be written" in done.refused()
    assert "because: " in done.out


def test_saved_traces_have_names_of_their_own(check):
    """Two targets whose names differ in signs only do not share a file."""
    for name in ("a-b.py", "a_b.py"):
        Path(name).write_text("from kvimpls.museum import ForgottenCopyOnWrite as Mine\n")
    done = check("a-b.py:Mine", "a_b.py:Mine", "--save-traces", "deep/traces")
    names = sorted(path.name for path in Path("deep/traces").iterdir())
    assert names == ["a-b-py-Mine-copy-on-write-2.json", "a-b-py-Mine-copy-on-write.json"]
    assert [load(Path("deep/traces", name)).allocator for name in names] == [
        "a_b.py:Mine",
        "a-b.py:Mine",
    ]
    assert done.out.count("saved deep/traces/") == 2


# ------------------------------------------------------------------------------ contracts


def broken_law(done):
    """The law that was reported."""
    assert done.code == 1, done
    return done.out.split(":")[0]


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("EagerTail", {"needless-copy", "fork"}),
        ("Granules", {"bounded-waste", "admission"}),
        ("Relocating", {"needless-copy", "frame"}),
        ("FirstBlockOne", {"well-formed"}),
        ("Prealloc", {"bounded-waste", "admission"}),
    ],
)
def test_the_strict_contract_rejects_a_weaker_allocator(check, name, laws):
    """`--contract paged` asks of an allocator what it does not promise, and says which law."""
    assert broken_law(check(f"kvimpls.unusual:{name}", "--contract", "paged")) in laws


def test_a_named_contract_keeps_the_geometries(check):
    """`paged` says how to behave, not what to be built with: that stays the allocator's."""
    done = check(
        "kvimpls.unusual:Prealloc", "--contract", "paged", "--json", "a.json", "--save-traces", "t"
    )
    [report] = json.loads(Path("a.json").read_text())["allocators"]
    assert report["contract"]["geometries"]["max_tokens"] == "required"
    assert report["relaxations"] == ["geometries"]
    assert report["trace"]["geometry"]["max_tokens"] is not None
    assert done.code == 1


def test_a_contract_in_a_file(check):
    """A JSON file gives the fields that differ from the strict contract."""
    Path("eager.json").write_text('{"eager_fork": "tail", "capabilities": ["core", "sharing"]}')
    done = check("kvimpls.unusual:EagerTail", "--contract", "eager.json")
    assert done.code == 0
    assert re.search(r"^relaxations +1: eager_fork$", done.out, re.MULTILINE)


def test_a_contract_of_fields(check):
    """`field=value,...` changes the allocator's own promise, and commas in brackets are safe."""
    text = "geometries.block_sizes=[2,3],relocates=False,eager_fork=none,geometries.max_blocks=4"
    done = check(REFERENCE, "--contract", text, "--json", "a.json")
    assert done.code == 0
    assert re.search(r"^relaxations +1: geometries$", done.out, re.MULTILINE)
    [report] = json.loads(Path("a.json").read_text())["allocators"]
    assert report["contract"]["geometries"]["block_sizes"] == [2, 3]
    assert report["contract"]["geometries"]["max_blocks"] == 4


def test_a_claim_from_the_command_line_replaces_detection(check):
    """With `capabilities=core` nothing else is judged."""
    done = check(REFERENCE, "--contract", "capabilities=core")
    assert done.code == 0
    assert re.search(r"^sharing +not claimed$", done.out, re.MULTILINE)


# ------------------------------------------------------------------------------ what is printed


def test_the_same_seed_gives_the_same_output(python, odd):
    """Two processes with other hash seeds print the same, to the letter."""
    command = ("-m", "kvspec.cli", "check", odd("LeaksLate"), "--profile", "quick", "--seed", 3)
    first, second = (python(*command, PYTHONHASHSEED=n) for n in "12")
    assert first.code == 1
    assert "1-minimal" in first.out
    assert first == second


def test_nothing_but_the_report_when_piped(python, folder):
    """No progress bar and no terminal's width, even where colours are asked for; no stray file."""
    done = python(
        "-m",
        "kvspec.cli",
        "check",
        "reference",
        "--profile",
        "quick",
        FORCE_COLOR="1",
        COLUMNS="40",
    )
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^  misuse +\x1b\[32mheld \d+/\d+", done.out, re.MULTILINE)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_progress_bar_on_a_terminal(python):
    """Where standard error is a terminal, it shows how far the episodes are."""
    ours, theirs = os.openpty()
    read: list[bytes] = []

    def drain():
        # A terminal that nobody reads holds few screens, and then the command waits for it.
        while not read or not read[-1].endswith(b"END"):
            read.append(os.read(ours, 1 << 16))

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        command = ("-m", "kvspec.cli", "check", "reference", "--profile", "quick")
        done = python(*command, stderr=theirs, TERM="xterm", COLUMNS="100")
        os.write(theirs, b"END")
        reader.join(10)
    finally:
        os.close(theirs)
        os.close(ours)
    shown = b"".join(read).decode(errors="replace")
    assert done.code == 0
    assert "reference" in shown
    assert "/60" in shown
    assert "\x1b" not in done.out


def test_the_device_is_told_to_the_allocators(kvspec, monkeypatch):
    """`--device` reaches them as KVSPEC_DEVICE, and is forgotten afterwards."""
    monkeypatch.delenv("KVSPEC_DEVICE", raising=False)
    Path("placed.py").write_text(
        "import os\n"
        "from kvimpls.reference import Reference\n"
        "class Placed(Reference):\n"
        "    def __init__(self, geometry):\n"
        "        assert os.environ['KVSPEC_DEVICE'] == 'cuda:1'\n"
        "        super().__init__(geometry)\n"
    )
    assert kvspec("check", "placed.py:Placed", "--profile", "quick", "--device", "cuda:1").code == 0
    assert "KVSPEC_DEVICE" not in os.environ
