"""What cannot be checked is one clear line; what can be built only sometimes is checked there."""

import functools
import re
import sys
import textwrap
from typing import ClassVar

import pytest
from hostile import Reference, doing, reported, walk

from kvimpls.unusual import Prealloc
from kvspec import Contract, Geometries, Geometry, UnsupportedGeometry
from kvspec.driver.driver import NotBuilt
from kvspec.driver.target import NotInstalled, TargetError, load, target
from kvspec.engines.ledger import Ledger
from kvspec.engines.machine import Profile, run_machine
from kvspec.suite.check import check_allocator


class Mute(Exception):
    def __str__(self):
        raise SystemExit


def raising(error):
    def factory(geometry):
        raise error

    return factory


def without(*methods):
    """The reference without some methods: they are not there at all."""
    members = {k: v for k, v in vars(Reference).items() if k not in (*methods, "__dict__")}
    return type("Partly", (), {k: v for k, v in members.items() if k != "__weakref__"})


def renamed(method, name):
    """The reference with one method under another name."""
    made = without(method)
    setattr(made, name, vars(Reference)[method])
    return made


def having(**members):
    """The reference with some members that are other than its own."""
    return type("Other", (Reference,), members)


class Contracted:
    """A factory with a `contract` that is none."""

    def __init__(self, contract):
        self.contract = contract

    def __call__(self, geometry):
        return Reference(geometry)


class FailingContract(Contracted):
    def __init__(self):
        pass

    @property
    def contract(self):
        raise KeyError("one\ntwo")


def claiming(make, *capabilities, **promises):
    """`make`, under a contract that claims the capabilities."""
    factory = functools.partial(make)
    factory.contract = Contract(capabilities=capabilities, **promises)
    return factory


class Positional(Reference):
    def allocate(self, seq, num_tokens):
        return super().allocate(seq, num_tokens)


class NoStore(Reference):
    """Claims to be a store, by its methods."""

    def write(self, seq, start, values):
        pass

    def read(self, seq):
        return []


def store(width, dtype):
    return type("Store", (NoStore,), {"width": width, "dtype": dtype})


class FailingWidth(NoStore):
    dtype = "float32"

    @property
    def width(self):
        raise KeyError("width")


class AttendsWithoutAStore(Reference):
    n_heads = n_kv_heads = d_k = d_v = 4

    def attend(self, seq, query):
        """There is no data to attend to."""


def heads(width=12, dtype="float32", **shape):
    """A store that claims attention, of one key-value head of 4 + 8 numbers or as given."""
    shape = {"n_heads": 2, "n_kv_heads": 1, "d_k": 4, "d_v": 8, **shape}
    deeds = {name: lambda self, *arguments: None for name in ("write", "read", "attend")}
    own = {name: value for name, value in shape.items() if value is not None}
    return type("Heads", (Reference,), {**deeds, **own, "width": width, "dtype": dtype})


STOPS = {
    "None": (None, "it is None (NoneType), not a factory"),
    "not callable": (Geometry(1, 1), "not a factory"),
    "an allocator": (Reference(Geometry(1, 1)), "(Reference), not a factory"),
    "raises": (raising(ValueError("no")), "the factory raised ValueError('no') for Geometry(num_"),
    "raises lines": (raising(ValueError("one\ntwo")), "raised ValueError('one two') for Geometry"),
    "raises without text": (raising(Mute()), "the factory raised Mute for Geometry(num_blocks=4"),
    "exits": (raising(SystemExit(1)), "the factory raised SystemExit('1')"),
    "raises GeneratorExit": (raising(GeneratorExit()), "the factory raised GeneratorExit"),
    "is not implemented": (raising(NotImplementedError()), "claimed but not implemented"),
    "returns None": (lambda geometry: None, "the factory returned None for Geometry(num_blocks=4"),
    "returns an int": (lambda geometry: 3, "it lacks allocate, append, free, block_table, num_fr"),
    "takes no geometry": (lambda: Reference(Geometry(1, 1)), "the factory raised TypeError"),
    "refuses": (raising(UnsupportedGeometry("a\nb")), "say in its contract (geometries)"),
    "refuses without text": (raising(type("UnsupportedGeometry", (Mute,), {})()), "is refused: Un"),
    "no free": (without("free"), "it lacks free, of the capability core"),
    "no core": (without("free", "append"), "it lacks append, free, of the capability core"),
    "half a lease": (without("end_transfer"), "it lacks end_transfer, of the capability lease"),
    "begin_transfr": (
        renamed("begin_transfer", "begin_transfr"),
        "it has begin_transfr and lacks begin_transfer, of the capability lease; rename it",
    ),
    "num_free_block": (
        renamed("num_free_blocks", "num_free_block"),
        "it has num_free_block and lacks num_free_blocks, of the capability core",
    ),
    "can_alocate": (renamed("can_allocate", "can_alocate"), "it has can_alocate and lacks can_al"),
    "forc": (renamed("fork", "forc"), "it has forc and lacks fork"),
    "ork": (renamed("fork", "ork"), "it has ork and lacks fork"),
    "rseize": (
        renamed("resize", "rseize"),
        "it has rseize and lacks resize, of the capability res",
    ),
    "truncate = 3": (
        having(truncate=3),
        "it has truncate = 3 (int) and lacks truncate(), a method",
    ),
    "supports_windows": (
        having(supports_window=None, supports_windows=True),
        "it has supports_windows and lacks supports_window, of the capability window; rename it",
    ),
    "supports_window = 1": (
        having(supports_window=1),
        "it has supports_window = 1 (int) and lacks supports_window = True",
    ),
    "check_point": (
        lambda geometry, *, check_point=None: Reference(geometry),
        "it has the factory(..., check_point=) and lacks the factory(..., checkpoint=)",
    ),
    "limits": (
        having(allocate=lambda self, seq, num_tokens, *, limits=None: None),
        "it has allocate(..., limits=) and lacks allocate(..., limit=)",
    ),
    "groups and pools": (
        having(
            block_table=lambda self, seq, groups=0: [],
            num_free_blocks=lambda self, pools=0: 0,
        ),
        "it has block_table(..., groups=) and lacks block_table(..., group=)",
    ),
    "contract of text": (Contracted("paged"), "its attribute contract is 'paged' (str), not a Con"),
    "contract of data": (Contracted({}), "its attribute contract is {} (dict), not a Contract"),
    "contract class": (Contracted(Contract), "its attribute contract is <class"),
    "failing contract": (FailingContract(), "its attribute contract: KeyError("),
    "unknown claim": (claiming(Reference, "swapping"), "its contract claims swapping; the capabil"),
    "claims too much": (claiming(Reference, "store"), "it claims store and lacks write, read"),
    "claims core in vain": (claiming(without("free"), "core"), "it claims core and lacks free"),
    "claims limits in vain": (
        claiming(Positional, "reservation"),
        "it claims reservation and lacks allocate(..., limit=)",
    ),
    "store without width": (NoStore, "it claims store and lacks width, dtype"),
    "store with a failing width": (FailingWidth, "it claims store and lacks width"),
    "store too narrow": (store(1, "float16"), "a row of 1 x float16 tells 11 bits of contents"),
    "store of nothing": (store(0, "float32"), "a row of 0 x float32 tells 0 bits"),
    "store of less": (store(-1, "float32"), "a row of -1 x float32 tells 0 bits"),
    "store of everything": (store(10**9, "float32"), "a row of 1000000000 values is too wide"),
    "store of bools": (store(64, bool), "a row of 64 x bool tells 0 bits"),
    "store of complex": (store(64, complex), "a row of 64 x complex128 tells 0 bits"),
    "store of objects": (store(64, object), "a row of 64 x object tells 0 bits"),
    "store of what": (store(4, "what"), "the attribute dtype is 'what' (str), not a numpy dtype"),
    "store of 3": (store(4, 3), "the attribute dtype is 3 (int), not a numpy dtype"),
    "attention without a store": (
        AttendsWithoutAStore,
        "it claims attention, which needs store as well; implement that, or list the capab",
    ),
    "attention without heads": (heads(n_heads=None), "it claims attention and lacks n_heads"),
    "attention of odd heads": (
        heads(n_heads="2"),
        "the attribute n_heads is '2' (str), not an int",
    ),
    "attention of no heads": (heads(n_kv_heads=0), "n_kv_heads must be at least 1, not 0"),
    "attention of uneven heads": (
        heads(n_heads=3, n_kv_heads=2, width=24),
        "3 query heads cannot share 2 key-value heads evenly",
    ),
    "attention of another width": (
        heads(width=13),
        "the width is 13, and n_kv_heads * (d_k + d_v) is 12",
    ),
    "attention over ints": (heads(dtype="int32"), "the dtype is int32, and attention is over fl"),
    "attention too narrow": (
        heads(width=5, d_k=2, d_v=3),
        "a row of 1 heads of 2 signs and 3 values of 4 bits tells 14 bits of contents apart",
    ),
    "attention too wide": (heads(n_heads=2**20), "a query of 1048576 heads is too wide"),
    "store of float width": (store(4.0, "int32"), "the attribute width is 4.0 (float), not an int"),
}


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    assert "0x" not in text
    return text


@pytest.mark.parametrize(("make", "text"), STOPS.values(), ids=STOPS)
def test_what_cannot_be_checked_is_one_clear_line(make, text):
    """A target that is none is a TargetError, which says what is wrong with it."""
    with pytest.raises(TargetError) as caught:
        check_allocator(make, name="mine", profile="quick")
    assert one_line(caught).startswith("mine: ")
    assert text in one_line(caught)


def test_a_keyboard_interrupt_of_the_factory_goes_through():
    """Whoever presses Ctrl-C while an allocator is built wants to stop."""
    with pytest.raises(KeyboardInterrupt):
        check_allocator(raising(KeyboardInterrupt()))


# ------------------------------------------------------------------------ geometries


def only(condition):
    """The reference, refusing every geometry but those."""

    class Choosy(Reference):
        built: ClassVar = []

        def __init__(self, geometry):
            if not condition(geometry):
                raise UnsupportedGeometry(f"not {geometry}")
            self.built.append(geometry)
            super().__init__(geometry)

    return Choosy


def test_a_geometry_that_is_refused_is_skipped():
    """UnsupportedGeometry for some geometries leaves the others to be checked."""
    make = only(lambda geometry: geometry.block_size == 2 and geometry.max_tokens is None)
    run = run_machine(target(make), Profile(episodes=20, steps=5), Ledger())
    assert run.trace is None
    assert run.refused_geometries
    assert len(set(make.built)) > 1


def test_only_the_plainest_geometry_will_do():
    """An allocator that can be built in one geometry alone is checked in it."""
    make = only(lambda geometry: geometry == Geometry(4, 2))
    run = run_machine(target(make), Profile(episodes=20, steps=5), Ledger())
    assert run.trace is None
    assert run.ledger.steps > 20
    assert set(make.built) == {Geometry(4, 2)}


def test_a_constructor_that_fails_for_some_geometries_stops_the_check():
    """What is neither an allocator nor UnsupportedGeometry is told with the geometry."""

    class Fails(Reference):
        def __init__(self, geometry):
            if geometry.block_size == 1:
                raise ZeroDivisionError("one\ntwo")
            super().__init__(geometry)

    with pytest.raises(TargetError) as caught:
        check_allocator(Fails, profile="quick")
    assert isinstance(caught.value, NotBuilt)
    assert "raised ZeroDivisionError('one two') for Geometry(" in one_line(caught)
    assert "block_size=1" in one_line(caught)


@pytest.mark.parametrize(
    "geometries",
    [
        Geometries(min_blocks=7),
        Geometries(max_blocks=2),
        Geometries(block_sizes=(16, 256)),
        Geometries(max_tokens="required"),
        Geometries(max_tokens="none"),
    ],
    ids=str,
)
def test_the_suite_stays_inside_the_contracts_geometries(geometries):
    """No geometry is tried that the contract excludes, not even to reduce."""
    made = []

    class Choosy(doing("free", lambda right: 3)):
        contract = Contract(geometries=geometries)

        def __init__(self, geometry):
            assert geometries.admits(geometry)
            made.append(geometry)
            super().__init__(geometry)

    reported(Choosy, "well-formed", "the answer is 3 (int)")
    assert len(made) > 5


# ------------------------------------------------------------------------ claims


class Proxy:
    """Has no methods on its type; hands everything on."""

    def __init__(self, geometry):
        self._inner = Reference(geometry)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Loose(Reference):
    """Takes the limit as it takes everything."""

    def allocate(self, seq, num_tokens, **options):
        return super().allocate(seq, num_tokens, **options)


class OnlyKeywords(Reference):
    def allocate(self, **options):
        return super().allocate(options["seq"], options["num_tokens"])


class Descriptor:
    """Fails when it is looked up on the type."""

    def __get__(self, instance, owner):
        if instance is None:
            raise RuntimeError("on instances only")


class Decorated(Reference):
    odd = Descriptor()


def test_a_claim_in_the_contract_is_the_claim():
    """Capabilities that are listed are the ones checked; core is always among them."""
    assert target(claiming(Reference, "lease")).capabilities == ("core", "lease")
    assert target(claiming(Reference)).capabilities == ("core",)
    assert target(claiming(without("end_transfer"), "core")).capabilities == ("core",)


def test_a_claim_may_be_borne_out_by_the_allocator_alone():
    """What the type does not show can be claimed, and then it is there or it is told."""
    everything = ("sharing", "lease", "admission", "reservation")
    assert set(target(claiming(Proxy, *everything)).capabilities) == {"core", *everything}
    assert "reservation" in target(claiming(Loose, "reservation")).capabilities
    with pytest.raises(TargetError, match="lacks allocate"):
        target(Proxy)


def test_what_is_not_shown_is_not_claimed():
    """Without a claim, `**options` promise nothing, and neither does what fails to show itself."""
    assert "reservation" not in target(Loose).capabilities
    assert "reservation" not in target(Positional).capabilities
    assert "reservation" in target(Decorated).capabilities


def test_a_method_with_other_parameters_is_reported():
    """A call that the method does not take is a TypeError, and a broken law."""
    reported(OnlyKeywords, "well-formed", "raised TypeError", "positional argument")


@pytest.mark.parametrize("capability", ["sharing", "lease", "admission"])
def test_a_capability_that_is_claimed_and_not_implemented_is_reported(capability):
    """Method stubs are a claim, and NotImplementedError is what comes of it."""
    method = {"sharing": "fork", "lease": "begin_transfer", "admission": "can_allocate"}[capability]

    class Stub(Reference):
        pass

    def stub(self, *arguments):
        raise NotImplementedError

    setattr(Stub, method, stub)
    report = reported(Stub, "well-formed", "NotImplementedError (claimed but not implemented)")
    assert report.trace.steps[-1].operation.method == method
    rest = tuple(c for c in report.capabilities if c != capability)
    assert not walk(Stub, tested=target(claiming(Stub, *rest))).breaches


WRONG_VALUES = {
    "eager_fork": ("sometimes", "eager_fork must be one of none, tail, all, not 'sometimes'"),
    "misuse": (None, "misuse must be one of raises, callers_duty, not None"),
    "relocates": ("yes", "relocates must be bool, not 'yes'"),
    "first_block": (1.5, "first_block must be a whole number, not 1.5"),
    "capabilities": ((1,), "capabilities must be str, not 1"),
    "reservation": ("paged", "reservation must be Paged or Granular or ToMax"),
    "geometries": (None, "geometries must be Geometries, not None"),
}


@pytest.mark.parametrize("field", WRONG_VALUES)
def test_a_contract_with_a_wrong_value_cannot_be_made(field):
    """A contract that is no data is refused where it is written down, in one clear line."""
    value, text = WRONG_VALUES[field]
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        Contract(**{field: value})
    assert "\n" not in str(caught.value)


def test_lists_in_a_contract_are_fine():
    """A contract that was written down with lists is the same."""
    lists = Contract(capabilities=["lease"], geometries=Geometries(block_sizes=[2]))
    tuples = Contract(capabilities=("lease",), geometries=Geometries(block_sizes=(2,)))
    assert target(Reference, contract=lists).contract == tuples


@pytest.mark.parametrize(
    "promises",
    [{"first_block": -1}, {"reservation": Prealloc.contract.reservation}],
    ids=["negative ids", "to a maximum that may be missing"],
)
def test_an_impossible_contract_cannot_be_made(promises):
    """A contract that no allocator can keep is refused where it is written down."""
    with pytest.raises(ValueError, match=r"must be|needs"):
        Contract(**promises)


# ------------------------------------------------------------------------ names


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules, out of which nothing stays imported."""
    files = {
        "good.py": """
            from __future__ import annotations
            from dataclasses import dataclass
            import neighbour
            from kvimpls.reference import Reference

            @dataclass
            class Options:
                size: int

            class Allocator(Reference):
                class Inner(Reference):
                    pass

            number = 3
        """,
        "neighbour.py": "from kvimpls.reference import Reference as Allocator",
        "json.py": "from kvimpls.reference import Reference",
        "lazy.py": """
            def __getattr__(name):
                if name == "needy":
                    import not_there_at_all
                if name == "failing":
                    raise RuntimeError("one\\ntwo")
                raise AttributeError(name)
        """,
        "broken.py": "def f(:",
        "exits.py": "raise SystemExit('bye\\nbye')",
        "raises.py": "raise ValueError('one\\ntwo')",
        "mute.py": """
            class Mute(Exception):
                def __str__(self):
                    raise ValueError
            raise Mute
        """,
        "nameless.py": "raise ModuleNotFoundError('gone')",
        "needs.py": "import not_there_at_all",
        "stops.py": "raise KeyboardInterrupt",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    ["good:Allocator", "good:Allocator.Inner", "good.py:Allocator", "./good.py:Allocator.Inner"],
)
def test_a_factory_is_found_by_its_name(folder, text):
    """A module or a file, and an attribute with dots; a file may import its neighbours."""
    assert issubclass(load(text), Reference)


def test_a_file_does_not_take_the_place_of_a_module(folder):
    """A file that is called as a module is leaves that module alone."""
    import json

    assert issubclass(load("json.py:Reference"), Reference)
    assert sys.modules["json"] is json


NAMES = {
    "reference_": "no allocator is registered under this name (there are: ",
    "": "no allocator is registered under this name",
    "missing:make": "there is no module missing",
    "missing.py:make": "there is no file missing.py",
    "good.more:make": "there is no module good.more",
    ":make": "it names no factory; name one as module:factory",
    "..good:make": "cannot be imported: TypeError",
    "good:": "it names no factory",
    "good:Alocator": "good has no Alocator; did you mean Allocator?",
    "good:Allocator.Innr": "good has no Allocator.Innr",
    "good:number": "number is 3 (int), not a factory",
    "lazy:nothing": "lazy has no nothing",
    "lazy:failing": "it cannot be imported: RuntimeError: one two",
    "broken:make": "it cannot be imported: SyntaxError: ",
    "broken.py:make": "it cannot be imported: SyntaxError: ",
    "exits:make": "it cannot be imported: SystemExit: bye bye",
    "exits.py:make": "it cannot be imported: SystemExit: bye bye",
    "raises:make": "it cannot be imported: ValueError: one two",
    "mute:make": "it cannot be imported: Mute",
    "nameless:make": "it cannot be imported: ModuleNotFoundError: gone",
    "nameless.py:make": "it cannot be imported: ModuleNotFoundError: gone",
}


@pytest.mark.parametrize(("name", "text"), NAMES.items(), ids=[repr(name) for name in NAMES])
def test_a_name_that_leads_nowhere_is_one_clear_line(folder, name, text):
    """Whatever stands between a name and a factory is a TargetError that begins with the name."""
    with pytest.raises(TargetError) as caught:
        load(name)
    assert not isinstance(caught.value, NotInstalled)
    assert one_line(caught).startswith(f"{name}: ")
    assert text in one_line(caught)


@pytest.mark.parametrize("name", ["needs:make", "needs.py:make", "lazy:needy"])
def test_what_is_not_installed_is_told_apart(folder, name):
    """A dependency that is missing is not a fault of the target."""
    with pytest.raises(NotInstalled, match="it needs not_there_at_all, which is not installed"):
        load(name)


@pytest.mark.parametrize("name", ["stops:make", "stops.py:make"])
def test_a_keyboard_interrupt_of_an_import_goes_through(folder, name):
    """Whoever presses Ctrl-C while a module is imported wants to stop."""
    with pytest.raises(KeyboardInterrupt):
        load(name)
