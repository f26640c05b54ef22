"""`kvspec new`: a skeleton that has the whole interface, can be loaded, and says what to write."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvspec.contract import Contract
from kvspec.driver.target import load, target
from kvspec.rooms import CAPABILITIES, ROOMS
from kvspec.suite.skeleton import sections, skeleton

FILE = "my_adapter.py"
ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = [room for room in ROOMS if room.capability != "core"]


@pytest.fixture
def written(kvspec, folder):
    """The text of a skeleton that the command wrote."""
    done = kvspec("new", FILE)
    assert (done.code, done.err) == (0, "")
    assert f"kvspec check {FILE}:Adapter" in done.out
    return Path(FILE).read_text(encoding="utf-8")


def uncommented(text, *capabilities):
    """The skeleton with the code of these sections, and what it imports for them."""
    text = re.sub(r"^# (from .* import .*)$", r"\1", text, flags=re.MULTILINE)
    head, *parts = re.split(r"^    (?=# ---- \w+ -+$)", text, flags=re.MULTILINE)
    found = [head]
    for part in parts:
        prose, code = part.split("\n\n", 1)
        if re.match(r"# ---- (\w+)", prose)[1] in capabilities:
            code = re.sub(r"^    #(?: |$)", "    ", code, flags=re.MULTILINE)
            code = re.sub(r"^ +$", "", code, flags=re.MULTILINE)
        found += ["    ", prose, "\n\n", code]
    return "".join(found)


def ids(room):
    return room.capability


def defined(text):
    """The names that the class Adapter of this source defines."""
    [adapter] = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    names = {n.name for n in adapter.body if isinstance(n, ast.FunctionDef)}
    for node in adapter.body:
        if isinstance(node, ast.Assign):
            names |= {one.id for one in node.targets}
    return names


def test_every_capability_has_its_section_in_the_published_order(written):
    """The core is code, all others are comments."""
    assert ["core", *re.findall(r"# ---- (\w+) -+$", written, re.MULTILINE)] == list(CAPABILITIES)
    assert set(ROOMS[0].methods) <= defined(written)


@pytest.mark.parametrize("room", OPTIONAL, ids=ids)
def test_a_section_has_every_name_and_law_of_its_capability(room):
    """Methods, attributes, flags and keywords as the rooms have them, and no others."""
    whole = skeleton(FILE)
    code = uncommented(whole, room.capability)
    added = {*room.methods, *room.attributes, *room.flags, *filter(None, room.keywords)}
    assert defined(code) == defined(whole) | added
    for method, keyword in room.keywords.items():
        assert re.search(rf"def {method or '__init__'}\([^)]*\b{keyword}: ", code)
    assert all(f"- {law.id}: " in whole for law in room.laws)


def test_every_protocol_of_the_interface_is_of_a_capability():
    """A protocol that no section shows would be an interface that nobody is told of."""
    without = {room.capability for room in ROOMS if room.flags}
    assert set(sections()) == set(CAPABILITIES) - without


def test_every_field_of_a_contract_can_be_chosen(written):
    """Each stands there with its default, so that all of them together change nothing."""
    text = re.sub(r"^        # (\w+=.*,)$", r"        \1", written, flags=re.MULTILINE)
    Path("chosen.py").write_text(uncommented(text), encoding="utf-8")
    assert load("chosen.py:Adapter").contract == Contract()
    assert load(f"{FILE}:Adapter").contract == Contract()
    fields = re.findall(r"^        # (\w+)=", written, re.MULTILINE)
    assert fields == list(Contract.__init__.__kwdefaults__)


def test_check_names_the_method_that_is_to_be_written_next(written, check):
    """First allocate; when that is there, what is asked after it."""
    done = check(f"{FILE}:Adapter")
    assert done.code == 1
    assert "well-formed" in done.out
    assert "NotImplementedError('allocate') (claimed but not implemented)" in done.out
    text = written.replace('raise NotImplementedError("allocate")', "return None")
    Path("further.py").write_text(text, encoding="utf-8")
    done = check("further.py:Adapter")
    assert done.code == 1
    assert "NotImplementedError('allocate')" not in done.out
    assert "(claimed but not implemented)" in done.out


@pytest.mark.parametrize("room", OPTIONAL, ids=ids)
def test_a_section_made_code_is_claimed(room, folder):
    """The file still loads, and the capability is there in full, with those that it needs."""
    path = folder / f"with_{room.capability}.py"
    path.write_text(uncommented(skeleton(path.name), room.capability, *room.needs))
    make = load(f"{path}:Adapter")
    if room.attributes:  # properties that are still to be written are not there
        for name in ("width", "dtype", *room.attributes):
            setattr(make, name, {"dtype": "float32", "width": 128}.get(name, 8))
    assert target(make).capabilities == tuple(
        name for name in CAPABILITIES if name in ("core", room.capability, *room.needs)
    )


@pytest.mark.parametrize("name", [FILE, 'odd"""name\\.py', f"{'long' * 40}.py"])
@pytest.mark.parametrize("capabilities", [(), CAPABILITIES], ids=["as written", "all code"])
def test_the_file_compiles_and_lints(name, capabilities, folder):
    """As it is written, and with every section made code."""
    text = skeleton(name)
    if capabilities:
        text = uncommented(text, *capabilities)
    compile(text, name, "exec")
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists() and shutil.which("ruff") is None:
        pytest.skip("ruff is not installed")
    (folder / FILE).write_text(text, encoding="utf-8")
    run = [str(ruff) if ruff.exists() else "ruff"]
    # With every section there is twice what one replaces, and nothing chosen of the contract.
    ignored = "F811,F401,I001" if capabilities else "RUF100"
    lint = [*run, "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", ignored]
    style = [*run, "format", "--check", "--config", str(ROOT / "pyproject.toml")]
    for command in (lint, style):
        done = subprocess.run([*command, FILE], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_what_is_there_already_is_left_as_it_is(kvspec, folder):
    """Also an empty file, a folder and a link that leads nowhere."""
    Path(FILE).write_text("mine", encoding="utf-8")
    Path("folder.py").mkdir()
    Path("link.py").symlink_to("nowhere.py")
    for name in (FILE, "folder.py", "link.py"):
        assert kvspec("new", name).refused() == f"{name}: it is there already, and is left as it is"
    assert Path(FILE).read_text(encoding="utf-8") == "mine"
    assert not Path("nowhere.py").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("adapter", "ends in .py"),
        ("adapter.txt", "ends in .py"),
        ("none/a.py", "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_one_line(kvspec, folder, name, why):
    """No suffix, another one, or no such folder."""
    assert why in kvspec("new", name).refused()
    assert list(folder.iterdir()) == []
