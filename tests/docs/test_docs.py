"""The documents say what is so: their examples run, and what is made from the code is fresh.

The conventions of the pages:

- `python` blocks of a page are run in order, in one namespace; `pycon` blocks are doctests.
- `console` blocks are run line by line: what follows `$ ` is a command, and the lines below it
  are all that it prints, `...` standing for any text. A page has one folder of its own to run
  in, where `docs` is the repository's. To be quick, every check is run with the quick profile.
- `sh` blocks set a machine up, and are not run; `text`, `json` and `toml` are only shown.
"""

import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import kvimpls
import kvspec
from kvspec.contract import Contract, Geometries, Reservation
from kvspec.interface import AllocatorError
from kvspec.kernel.outcome import Observation
from kvspec.rooms import CAPABILITIES, LAWS, ROOMS
from kvspec.suite.report import ExitCode, Verdict
from kvspec.traces.trace import Trace, TraceStep, from_json

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

LANGUAGES = {"python", "pycon", "console", "sh", "text", "json", "toml"}

OPTIONAL = {"torch", "transformers"}
"""What some implementations need and a plain install does not have."""

NOT_YET_SPECIFIED = {"NotResident"}
"""Errors of capabilities that have a name, and no room."""


def blocks(page: Path, *languages: str) -> list[str]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [match["text"] for match in found if match["language"] in languages]


def having(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


def name(page: object) -> str:
    return page.name if isinstance(page, Path) else str(page)


# ------------------------------------------------------------------------------ examples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").symlink_to(DOCS)
    return tmp_path


@pytest.mark.parametrize("page", having("python"), ids=name)
def test_python_examples_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of a page can be pasted, block after block."""
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {"__name__": "page"}
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page.name}[{number}]", "exec"), namespace)


@pytest.mark.parametrize("page", having("pycon"), ids=name)
def test_interactive_examples_run(page: Path) -> None:
    """What a page shows of a session with Python is what it would be."""
    source = "\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(source, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block in a language without a convention would not be run, and nobody would know."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]
    assert set(opened) <= {*LANGUAGES, "{toctree}"}


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is to print."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, output = found[-1]
            found[-1] = (command, f"{output}{line}\n")
    return found


def quickly(command: str) -> str:
    if command.startswith("kvspec check "):
        return f"{command} --profile quick"
    if "--pyargs kvspec.conformance" in command:
        return f"{command} --kvspec-profile quick"
    return command


def environment() -> dict[str, str]:
    """This one's, with its programs found first, and without what pytest tells its children."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("page", having("console"), ids=name)
def test_console_examples_run(page: Path, folder: Path) -> None:
    """What a page says that a command prints is what it prints."""
    code = 0
    for block in blocks(page, "console"):
        for command, expected in commands(block):
            # The exit code of the command before, for those who ask for `$?`.
            script = f"(exit {code}); {quickly(command)}"
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            code = done.returncode
            printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
            matches = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
            assert matches, f"$ {command}\nshown:\n{expected}\nprinted:\n{printed}"


def test_the_json_of_the_pages_is_json() -> None:
    """And the trace that is shown can be read."""
    texts = [text for page in having("json") for text in blocks(page, "json")]
    traces = [text for text in texts if "format" in json.loads(text)]
    assert [from_json(text).law for text in traces] == ["conservation"]


def modules() -> list[str]:
    """All modules of both packages, found without importing any."""
    names = []
    for package in (kvspec, kvimpls):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            names.append(".".join(part for part in parts if part != "__init__"))
    return sorted(names)


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    """The examples in a module's docstrings show what really comes out."""
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL and not module.startswith("kvimpls.adapters."):
            raise
        pytest.skip(f"{module} needs {error.name}, which is not installed")
    assert doctest.testmod(loaded).failed == 0


# ------------------------------------------------------------------------ generated text


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(root / "docs" / "generate.py"), *arguments]
    return subprocess.run(script, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documents on their own, to be changed."""
    shutil.copy(ROOT / "README.md", tmp_path)
    ignored = shutil.ignore_patterns("_build", "__pycache__", ".*")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=ignored)
    return tmp_path


def test_generated_text_is_fresh() -> None:
    """README and docs show what the code does now."""
    done = generate(ROOT, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stale_text_is_found_and_mended(copy: Path) -> None:
    """A counterexample that the code does not have any more is named, and made anew."""
    readme, page = copy / "README.md", "reading-traces.md"
    text = readme.read_text(encoding="utf-8")
    assert "<- copy-on-write" in text
    readme.write_text(text.replace("<- copy-on-write", "<- read-back"), encoding="utf-8")
    stale = generate(copy, "--check", "README.md", page)
    assert stale.returncode == 1
    assert [line.split(":")[0] for line in stale.stdout.splitlines()] == ["README.md"]
    assert generate(copy, "README.md", page).returncode == 0
    assert readme.read_text(encoding="utf-8") == text


# ---------------------------------------------------------------------------- completeness


def test_every_law_has_its_section() -> None:
    """The page of laws has all of them, in the published order."""
    text = (DOCS / "laws.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)$", text, re.MULTILINE) == [law.id for law in LAWS]


def missing(page: Path, words: set[str]) -> set[str]:
    text = page.read_text(encoding="utf-8")
    return {word for word in words if not re.search(rf"\b{re.escape(word)}\b", text)}


def test_the_interface_is_described_in_full() -> None:
    """Every method, keyword, attribute, error, reservation and field of a contract."""
    words = {error.__name__ for error in AllocatorError.__subclasses__()} - NOT_YET_SPECIFIED
    for room in ROOMS:
        words |= {room.capability, *room.methods, *room.attributes, *room.keywords.values()}
    words |= {field.name for kind in (Contract, Geometries) for field in attrs.fields(kind)}
    words |= {kind.__name__ for kind in Reservation.__args__}
    assert missing(DOCS / "plug-in.md", words) == set()


def test_the_trace_is_described_in_full() -> None:
    """Every key of a trace, of its steps and of what they observed."""
    kinds = (Trace, TraceStep, Observation)
    words = {field.name for kind in kinds for field in attrs.fields(kind)}
    assert missing(DOCS / "reading-traces.md", words) == set()


def test_the_readme_has_the_verdicts_and_capabilities() -> None:
    """A verdict, an exit code or a capability that nobody explains would be a riddle."""
    verdicts = {verdict.value for verdict in Verdict}
    codes = {str(int(code)) for code in ExitCode}
    assert missing(ROOT / "README.md", {*verdicts, *codes, *CAPABILITIES}) == set()


def test_the_example_needs_no_kvspec() -> None:
    """An allocator can be plugged in without importing anything of ours."""
    text = (DOCS / "examples" / "mine.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) (kvspec|kvimpls)\b", text, re.MULTILINE)


# ------------------------------------------------------------------------------ links


def anchors(page: Path) -> set[str]:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_internal_links_resolve(page: Path) -> None:
    """Every link to a file or a heading of ours leads somewhere."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        linked = (page.parent / place) if place else page
        assert linked.exists(), link
        if anchor:
            assert anchor in anchors(linked), link


def test_the_pages_build(tmp_path: Path) -> None:
    """Sphinx has nothing to complain of."""
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    pytest.importorskip("myst_parser", reason="myst-parser is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
