"""The pytest plugin: anyone's allocator, from a folder with no test in it."""

from pathlib import Path

import pytest

import kvspec
from kvspec.engines.machine import PROFILES

MINE = """
from kvimpls.museum import ForgottenCopyOnWrite as Broken
from kvimpls.reference import Reference as Mine
"""

HEAVY = ("hypothesis", "numpy", "rich", "pytest", "click", "cattrs", "torch")


@pytest.fixture
def conformance(python, folder):
    """Runs the conformance suite on allocators of this folder, warnings being errors."""
    Path("mine.py").write_text(MINE)

    def run(*targets, options=()):
        named = [word for target in targets for word in ("--allocator", target)]
        # A cache of pytest's own would be another file in the folder.
        quick = ("--kvspec-profile", "quick", "-p", "no:cacheprovider", "-W", "error")
        suite = ("-m", "pytest", "--pyargs", "kvspec.conformance", "-k", "stateful")
        return python(*suite, *quick, *named, *options)

    return run


def test_anyones_allocator_is_one_test(conformance, folder):
    """A right allocator passes and a broken one fails, with the story and not our stack."""
    done = conformance("mine.py:Mine", "mine.py:Broken", options=("--save-traces", "traces"))
    assert done.code == 1
    assert "1 failed, 1 passed" in done.out
    [_, failure] = done.out.split("test_stateful[mine.py:Broken] ____")
    lines = failure.splitlines()
    assert lines[1].startswith("copy-on-write: A write into a block that another table has")
    assert any(line.startswith("    because: ") for line in lines)
    assert "saved traces/mine-py-Broken-copy-on-write.json" in lines
    for noise in ("Traceback", "raise ", "During handling", "def test_", "spec/kvspec", "Error"):
        assert noise not in done.out
    assert Path("traces/mine-py-Broken-copy-on-write.json").is_file()


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("mine.py:Mime", (), "mine.py:Mime: mine.py has no Mime; did you mean Mine?"),
        ("mine.py:Mine", ("--contract", "nonsense"), "contract 'nonsense' is no name (paged)"),
        ("mine.py:Mine", ("--call-timeout", "-1"), "--call-timeout: -1.0 is no number of seconds"),
    ],
)
def test_a_bad_option_is_one_line(conformance, target, options, said):
    """What cannot be tested is told before anything is collected, as pytest tells usage errors."""
    done = conformance(target, options=options)
    assert done.code == 4  # pytest's own code for a usage error
    assert done.err.lstrip().startswith(f"ERROR: {said}")
    assert "Traceback" not in done.out + done.err


def test_the_plugin_offers_the_profiles_that_there_are(pytestconfig):
    """The plugin names them itself, since it must not import the suite to know them."""
    [option] = [
        option
        for group in pytestconfig._parser._groups
        for option in group.options
        if "--kvspec-profile" in option.names()
    ]
    assert list(option.attrs()["choices"]) == list(PROFILES)


@pytest.mark.parametrize("module", ["kvspec", "kvspec.plugin"])
def test_importing_is_light(python, module):
    """Neither the interface nor the plugin imports what the suite needs."""
    done = python("-c", f"import sys, {module}; print(*sorted(sys.modules))")
    assert done.code == 0
    assert not {name.split(".")[0] for name in done.out.split()} & set(HEAVY)


def test_the_suite_is_a_function_of_the_package():
    """`kvspec.check_allocator` is there when it is asked for, and nothing else that is not."""
    assert "check_allocator" in kvspec.__all__
    assert kvspec.check_allocator.__module__ == "kvspec.suite.check"
    with pytest.raises(AttributeError, match="'kvspec' has no attribute 'chek_allocator'"):
        kvspec.chek_allocator  # noqa: B018 (asking is the test)
