"""Who imports whom: rooms do not know each other, and the specification knows no tools."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvimpls
import kvspec

SPEC = Path(kvspec.__file__).parent
IMPLS = Path(kvimpls.__file__).parent


def modules(folder: Path) -> list[Path]:
    """The modules in `folder` and below."""
    return sorted(folder.rglob("*.py"))


def module_name(path: Path, root: Path) -> str:
    """The dotted name of the module at `path`, whose top package is the folder `root`."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Each import as (module, name), the name empty for a plain one; lazy ones too."""
    here = module_name(path, root)
    package = here if path.name == "__init__.py" else here.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module, names, level):
                above = package.split(".")[: len(package.split(".")) - (level or 1) + 1]
                base = ".".join([*above, *([module] if module else [])]) if level else module or ""
                yield from ((base, alias.name) for alias in names)


def imported(path: Path, root: Path) -> set[str]:
    """The dotted names that `path` may load: the modules, and `module.name` of each name."""
    return {f"{module}.{name}".rstrip(".") for module, name in imports(path, root)} | {
        module for module, _ in imports(path, root)
    }


def within(name: str, package: str) -> bool:
    """Whether the dotted `name` is `package` or inside of it."""
    return name == package or name.startswith(package + ".")


def room_of(name: str) -> str | None:
    """The room that a dotted name lies in, if it lies in one."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["kvspec", "rooms"] and len(parts) > 2 else None


def relative(path: Path) -> str:
    """A module as a test's id."""
    return str(path.relative_to(SPEC.parent if path.is_relative_to(SPEC) else IMPLS.parent))


KERNEL = modules(SPEC / "kernel")
ROOMS = [path for path in modules(SPEC / "rooms") if path != SPEC / "rooms" / "__init__.py"]
REGISTRY = SPEC / "rooms" / "__init__.py"
ARITHMETIC = [SPEC / f"{name}.py" for name in ("geometry", "contract", "interface", "validation")]


@pytest.mark.parametrize("path", ROOMS, ids=relative)
def test_no_room_imports_another(path):
    """A room meets the others in the kernel's facts alone, so it imports none, nor their list."""
    own = room_of(module_name(path, SPEC))
    others = {room_of(name) for name in imported(path, SPEC)} - {own, None}
    assert not others
    assert "kvspec.rooms" not in {module for module, _ in imports(path, SPEC)}


@pytest.mark.parametrize("path", [*KERNEL, *ARITHMETIC], ids=relative)
def test_the_kernel_imports_no_room_no_driver_and_no_engine(path):
    """The kernel knows geometry, contract and interface, and nothing that is built on it."""
    ours = {name for name in imported(path, SPEC) if within(name, "kvspec")}
    known = (
        "kvspec.kernel",
        "kvspec.geometry",
        "kvspec.contract",
        "kvspec.interface",
        "kvspec.validation",
    )
    assert not {name for name in ours if not any(within(name, one) for one in known)}


@pytest.mark.parametrize("path", [*ROOMS, REGISTRY], ids=relative)
def test_rooms_are_built_on_the_kernel_alone(path):
    """A room imports neither the driver, nor an engine, nor what reports and saves.

    The room of attention needs the definition of attention as well, and takes it when it judges.
    """
    ours = {name for name in imported(path, SPEC) if within(name, "kvspec")}
    known = (
        *(
            "kvspec.kernel",
            "kvspec.geometry",
            "kvspec.contract",
            "kvspec.interface",
            "kvspec.validation",
        ),
        "kvspec.rooms",
    )
    if path == SPEC / "rooms" / "attention.py":
        known += ("kvspec.attention.probe",)
    assert not {name for name in ours if not any(within(name, one) for one in known)}


@pytest.mark.parametrize("path", [*KERNEL, *ROOMS, REGISTRY, *ARITHMETIC], ids=relative)
def test_the_specification_knows_neither_tools_nor_files(path):
    """It imports attrs and the pure part of the standard library: no clock, chance or file."""
    pure = {
        *("attrs", "kvspec", "collections", "enum", "functools", "itertools", "math"),
        *("operator", "typing"),
    }
    assert {name.split(".")[0] for name in imported(path, SPEC)} <= pure
    calls = {n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    assert not called & {"open", "print", "input", "__import__", "eval", "exec"}


@pytest.mark.parametrize("path", modules(SPEC), ids=relative)
def test_nothing_in_the_suite_imports_torch_or_an_implementation(path):
    """Neither at import nor lazily: what it judges and what that is made of stay outside."""
    tops = {name.split(".")[0] for name in imported(path, SPEC)}
    assert not tops & {"torch", "kvimpls", "transformers"}


def test_importing_the_suite_loads_neither_torch_nor_an_implementation():
    """What `import` really loads agrees with what the sources say."""
    script = (
        "import sys, kvspec, kvspec.rooms, kvspec.engines.machine\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(run.stdout.split())
    assert {"kvspec", "hypothesis"} <= loaded
    assert not loaded & {"torch", "kvimpls", "transformers", "pytest"}


def test_importing_the_plugin_or_the_interface_loads_no_hypothesis():
    """The plugin loads in everybody's pytest, so it may not bring in the suite."""
    script = (
        "import sys, kvspec, kvspec.plugin, kvspec.rooms\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert not set(run.stdout.split()) & {"hypothesis", "numpy", "click", "rich", "torch"}


@pytest.mark.parametrize("path", modules(IMPLS), ids=relative)
def test_implementations_import_the_names_of_the_interface_only(path):
    """From kvspec they take names of `kvspec.__all__`, and nothing from its modules."""
    ours = [pair for pair in imports(path, IMPLS) if within(pair[0], "kvspec")]
    assert {module for module, _ in ours} <= {"kvspec"}
    assert {name for _, name in ours} <= set(kvspec.__all__)


def test_the_walker_sees_lazy_relative_and_aliased_imports(tmp_path):
    """The reading of imports that these tests rest on misses none of their forms."""
    folder = tmp_path / "top" / "inner"
    folder.mkdir(parents=True)
    module = folder / "module.py"
    module.write_text(
        "import a.b as c\n"
        "from . import sibling\n"
        "from ..other import name as alias\n"
        "def lazy():\n    from d import e\n"
    )
    assert set(imports(module, tmp_path / "top")) == {
        ("a.b", ""),
        ("top.inner", "sibling"),
        ("top.other", "name"),
        ("d", "e"),
    }
