"""Bad input: each is one clear line on standard error, exit code 2, and no traceback."""

import json
from pathlib import Path
from random import Random

import pytest

from kvspec.traces.export import as_pytest
from kvspec.traces.table import as_text
from kvspec.traces.trace import FORMAT, TraceError, from_json

CORE = """
from kvimpls.reference import Reference
from kvspec import Contract, Geometries, ToMax, UnsupportedGeometry


class Core:
    def __init__(self, geometry): ...
    def allocate(self, seq, num_tokens): ...
    def append(self, seq, num_tokens): ...
    def free(self, seq): ...
    def block_table(self, seq): ...
    def num_free_blocks(self): ...


"""

TARGETS = {
    "a syntax error": ("def (:", "it cannot be imported: SyntaxError"),
    "a missing module": ("import no_such_package", "it needs no_such_package"),
    "raising when imported": ("raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
    "leaving when imported": ("import sys; sys.exit(0)", "SystemExit"),
    "nothing of that name": ("Mime = 1", "mine.py has no Mine; did you mean Mime?"),
    "not a factory": ("Mine = 3", "3 (int), not a factory"),
    "a module": ("import sys as Mine", "not a factory"),
    "no arguments taken": ("class Mine: ...", "the factory raised TypeError"),
    "making nothing": ("def Mine(geometry): ...", "the factory returned None"),
    "making another thing": ("def Mine(geometry): return 3", "it lacks allocate, append, free"),
    "lacking a method": ("class Mine(Core): free = None", "it lacks free, of the capability core"),
    "a method misspelt": (
        "class Mine(Core):\n    alocate = Core.allocate\n    allocate = None",
        "it has alocate and lacks allocate",
    ),
    "an optional one misspelt": (
        "class Mine(Core):\n    def can_alocate(self, n): ...",
        "it has can_alocate and lacks can_allocate, of the capability admission",
    ),
    "half a capability": (
        "class Mine(Core):\n    def begin_transfer(self, seq): ...",
        "it lacks end_transfer, of the capability lease",
    ),
    "a constructor that raises": (
        "class Mine(Core):\n    def __init__(self, geometry): 1 / 0",
        "the factory raised ZeroDivisionError",
    ),
    "a constructor that leaves": (
        "class Mine(Core):\n    def __init__(self, geometry): raise SystemExit(0)",
        "the factory raised SystemExit",
    ),
    "no geometry supported": (
        "class Mine(Core):\n    def __init__(self, geometry): raise UnsupportedGeometry('none')",
        "say in its contract (geometries) what it can be built with",
    ),
    "an impossible contract": (
        "class Mine(Core): contract = Contract(first_block=-1)",
        "first_block must be at least 0",
    ),
    "a reservation without its geometries": (
        "class Mine(Core): contract = Contract(reservation=ToMax())",
        "set geometries.max_tokens to 'required'",
    ),
    "a contract that is none": ("class Mine(Core): contract = 'paged'", "not a Contract"),
    "an unknown capability": (
        "class Mine(Core): contract = Contract(capabilities=('core', 'magic'))",
        "its contract claims magic; the capabilities are core, ",
    ),
    "a claim without its methods": (
        "class Mine(Core): contract = Contract(capabilities=('core', 'sharing'))",
        "it claims sharing and lacks fork",
    ),
}


@pytest.mark.parametrize(("source", "said"), TARGETS.values(), ids=TARGETS)
def test_a_target_that_cannot_be_checked(check, source, said):
    """The line names the target, says what is wrong with it, and what to try."""
    Path("mine.py").write_text(CORE + source + "\n")
    line = check("mine.py:Mine").refused()
    assert line.startswith("mine.py:Mine: ")
    assert said in line


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no.py:Mine", "there is no file no.py"),
        ("no_such_module:Mine", "there is no module no_such_module"),
        ("kvimpls.no_such_module:Mine", "there is no module kvimpls.no_such_module"),
        ("kvimpls.reference:Referense", "did you mean Reference?"),
        ("kvimpls.museum:KeyDroped", "did you mean KeyDropped?"),
        ("kvimpls.reference:", "it names no factory"),
        ("kvimpls.reference:Reference.nothing.at.all", "has no Reference.nothing.at.all"),
        ("refrence", "no allocator is registered under this name (there are: "),
        ("refrence", "of published engines; reference is near); name one as"),
        (":Mine", "it names no factory"),
        (":", "it names no factory"),
        ("", "no allocator is registered under this name"),
    ],
)
def test_a_target_that_is_none(check, target, said):
    """A name that leads nowhere is told with what there is."""
    assert said in check(target).refused()


def test_a_bad_target_stops_before_anything_is_checked(check):
    """A typing error in the last of several targets does not cost the check of the others."""
    done = check("kvimpls.reference:Reference", "no.py:Mine")
    assert done.refused()
    assert done.out == ""


CONTRACTS = {
    "nonsense": "is no name (paged), no file ending in .json, and no field=value",
    "": "is no name",
    ",": "is no name",
    "first_block": "is no name",
    "=5": "a contract has no field ''",
    "colour=red": "a contract has no field 'colour'; it has capabilities, reservation, ",
    "first_block=-1": "first_block must be at least 0, not -1",
    "first_block=1.5": "first_block: 1.5 is not a whole number",
    "first_block=true": "first_block: true is not a whole number",
    "first_block=": 'first_block: "" is not a whole number',
    "first_block=1,": "'' is no field=value",
    "first_block.x=1": "first_block has no fields of its own",
    "relocates=no": 'relocates: "no" is not true or false',
    "eager_fork=some": 'eager_fork: "some" is not none or tail or all',
    "reservation=ToMax": "set geometries.max_tokens to 'required'",
    "reservation=Lots": "there is no reservation 'Lots'; there are Paged, Granular, ",
    "reservation=Granular": "write Granular:TOKENS, as in Granular:256",
    "reservation=Granular:0": "at least 1 token, not 0",
    "reservation=Granular:x": 'reservation.tokens: "x" is not a whole number',
    "reservation=Paged:3": "write Paged alone",
    "capabilities=": "write them as in capabilities=core+sharing",
    "capabilities=core+magic": "its contract claims magic",
    "capabilities=core+store": "it claims store and lacks write, read",
    "geometries=3": "geometries: ",
    "geometries.colour=1": "geometries: there is no 'colour'",
    "geometries.min_blocks=0": "geometries: ",
    "geometries.block_sizes=2": "geometries.block_sizes: 2 is not a list",
    "geometries.block_sizes=[2": "geometries.block_sizes: ",
    "no.json": "contract no.json: it cannot be read: No such file or directory",
    "folder.json": "contract folder.json: it cannot be read: Is a directory",
    "cut.json": "contract cut.json: it is not JSON, or was cut off: ",
    "list.json": "contract list.json: it is JSON, but no object with fields",
    "binary.json": "contract binary.json: it is not JSON: it is not text",
    "deep.json": "contract deep.json: it is nested too deeply",
    "colour.json": "contract colour.json: there is no 'colour'",
    "text.json": 'contract text.json: relocates: "false" is not true or false',
}


@pytest.mark.parametrize(("contract", "said"), CONTRACTS.items(), ids=repr)
def test_a_contract_that_is_none(check, contract, said):
    """Nothing is converted in silence: a value of another type is told, with its place."""
    Path("folder.json").mkdir()
    Path("cut.json").write_text('{"first_block": ')
    Path("list.json").write_text("[]")
    Path("binary.json").write_bytes(b"\xff\xfe\x00")
    Path("deep.json").write_text("[" * 100_000)
    Path("colour.json").write_text('{"colour": "red"}')
    Path("text.json").write_text('{"relocates": "false"}')
    assert said in check("kvimpls.reference:Reference", "--contract", contract).refused()


def test_a_contract_that_is_none_is_told_once(check):
    """With all registered allocators, the contract is one line all the same."""
    assert "is no name" in check("--contract", "nonsense").refused()


# ------------------------------------------------------------------------------ traces


def cut(text):
    """The first half."""
    return text[: len(text) // 2]


def later(text):
    """One format later."""
    return text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')


def changed(*path, to):
    """The trace with another value at `path`."""

    def change(text):
        data = json.loads(text)
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to
        return json.dumps(data)

    return change


TRACES = {
    "cut": (cut, "it is not JSON, or was cut off: "),
    "later": (
        later,
        f"it has format {FORMAT + 1}, and this version reads format {FORMAT}; "
        "a later kvspec may read",
    ),
    "empty": (lambda text: "", "it is not JSON"),
    "prose": (lambda text: "a trace", "it is not JSON"),
    "list": (lambda text: "[]", "it is JSON, but no trace"),
    "other": (lambda text: '{"name": "x"}', "it is JSON, but no trace: it has no format"),
    "deep": (lambda text: "[" * 100_000, "it is nested too deeply"),
    "nan": (lambda text: '{"format": NaN}', "NaN is not in JSON"),
    "surrogate": (lambda text: '{"format": "\\ud800"}', "it has text that is not Unicode"),
    "a call that is none": (
        changed("steps", 0, "operation", "call", to="os.system"),
        'steps: entry 0: operation: "os.system" is no call of the interface',
    ),
    "an id that is none": (
        changed("steps", 0, "operation", "seq", to="A"),
        'steps: entry 0: operation: seq of allocate is "A"',
    ),
    "an argument too many": (
        changed("steps", 0, "operation", "colour", to=1),
        "allocate has no argument 'colour'",
    ),
    "a geometry that is none": (changed("geometry", "num_blocks", to=0), "num_blocks must be"),
    "a pool beyond all memory": (changed("geometry", "block_size", to=10**15), "its pool holds"),
    "an unclaimed capability": (
        changed("capabilities", to=["core"]),
        "fork is a call of a capability that is not claimed",
    ),
    "a text for a truth": (
        changed("steps", 0, "look", "full", to="false"),
        'look.full: "false" is not true or false',
    ),
}


@pytest.mark.parametrize("command", ["show", "replay", "export"])
@pytest.mark.parametrize(("change", "said"), TRACES.values(), ids=TRACES)
def test_a_file_that_is_no_trace(kvspec, counterexample, command, change, said):
    """The line names the file and says what is wrong in it."""
    counterexample.write_text(change(counterexample.read_text()))
    options = ("--allocator", "reference") if command == "replay" else ()
    line = kvspec(command, counterexample, *options).refused()
    assert line.startswith(f"{counterexample}: ")
    assert said in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.json", "it cannot be read: No such file or directory"),
        ("folder", "it cannot be read: Is a directory"),
        ("binary", "it is not JSON: it is not text"),
    ],
)
def test_a_file_that_cannot_be_read(kvspec, name, said):
    """A missing file, a folder and a binary file are told apart."""
    Path("folder").mkdir()
    Path("binary").write_bytes(b"\x80\x00\xff")
    assert kvspec("show", name).refused() == f"{name}: {said}"


JUNK = (
    *(None, True, 0, 1, -1, 7, 10**6, 10**30, 1.5, "", "x", "core", "0", "\x1b[31m"),
    *([], [1], [None], {}, {"a": 1}, ["core", "lease"]),
)


def places(data, path=()):
    """The path of every value in `data`."""
    yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*path, key))


def test_a_damaged_trace_is_read_or_told(counterexample):
    """Whatever one to three values in a trace become, it is refused in one line or can be shown."""
    text, random = counterexample.read_text(), Random(0)
    paths = [path for path in places(json.loads(text)) if path]
    read = 0
    for _ in range(400):
        damaged = text
        for _ in range(random.randint(1, 3)):
            change = changed(*random.choice(paths), to=random.choice(JUNK))
            try:
                damaged = change(damaged)
            except (KeyError, IndexError, TypeError):  # the last change took the place away
                continue
        try:
            trace, refusal = from_json(damaged), ""
        except TraceError as error:
            trace, refusal = None, str(error)
        assert len(refusal.splitlines()) == (trace is None)
        if trace is None:
            continue
        read += 1
        assert "\x1b" not in as_text(trace)
        compile(as_pytest(trace, "reference"), "exported", "exec")
    assert 10 < read < 390
