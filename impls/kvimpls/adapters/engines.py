"""Engines as they were published: where one is found, and how the few modules needed are loaded.

An engine is installed as any distribution is, or unpacked by `python -m kvimpls.adapters.fetch`
into a folder of its own, of which `KVSPEC_WILD` names the parent (default: build/wild). Of most
engines one or two modules are of interest, while the `__init__` of the packages around them
imports servers and kernels. So these packages are left bare: they lead to their modules, but are
not run. What a module needs of large libraries without using it here gets a stand-in.

Whatever was loaded is private to the adapter: two engines may have packages of one name.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any


def unpacked() -> Path:
    """The folder in which engines are unpacked, each in a folder of its distribution's name."""
    return Path(os.environ.get("KVSPEC_WILD", "build/wild")).absolute()


def folder(distribution: str, version: str) -> Path:
    """The folder that has the packages of this very version.

    Raises `ModuleNotFoundError` where it is not installed, so that a matrix can say so; an adapter
    follows the code of one version, and another is as good as none.
    """
    here: dict[str, None] = {}
    for path in ([str(unpacked() / distribution)], sys.path):
        for found in distributions(name=distribution, path=path):
            if found.version == version:
                return Path(str(found.locate_file("")))
            here[found.version] = None
    wanted = f"{distribution}=={version}"
    if here:
        wanted += f" (the pinned version; here is {' and '.join(here)})"
    raise ModuleNotFoundError(f"{wanted} is not installed", name=wanted)


@contextmanager
def engine(
    distribution: str,
    version: str,
    *,
    bare: Sequence[str] = (),
    stand_ins: Sequence[str] = (),
    alias: str | None = None,
) -> Iterator[Path]:
    """Within it the engine's packages can be imported; its modules are not seen afterwards.

    `bare` are the dotted names of packages whose `__init__` is not run. `stand_ins` are modules,
    with all below them, that are replaced by placeholders even where they are installed. `alias`
    is the name by which the engine imports its own package, one of the bare ones, where that is
    published under another: then it lies at the root under the distribution's. Gives the folder.

    >>> with engine("kvspec-of-nobody", "1.0"):
    ...     pass
    Traceback (most recent call last):
    ModuleNotFoundError: kvspec-of-nobody==1.0 is not installed
    """
    root = folder(distribution, version)
    finder = _Finder(root, frozenset(bare), frozenset(stand_ins), alias, distribution)
    before = dict(sys.modules)
    for name in list(sys.modules):
        if finder.owns(name):
            del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield root
    finally:
        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if finder.owns(name):
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in before if finder.owns(name)})


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what lies in the engine's folder, and the stand-ins, before anything else."""

    def __init__(
        self,
        root: Path,
        bare: frozenset[str],
        stand_ins: frozenset[str],
        alias: str | None,
        distribution: str,
    ) -> None:
        self.root, self.bare, self.stand_ins = root, bare, stand_ins
        self.roots = {name.partition(".")[0]: name.partition(".")[0] for name in bare}
        if alias is not None:
            self.roots[alias] = distribution.replace("-", "_")

    def owns(self, name: str) -> bool:
        """Whether a module of this name is the engine's, or stands in for another."""
        top = name.partition(".")[0]
        return top in self.roots or self._stands_in(name)

    def _stands_in(self, name: str) -> bool:
        return any(name == one or name.startswith(one + ".") for one in self.stand_ins)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of a stand-in, of a bare package, or of a module of the engine."""
        if self._stands_in(fullname):
            loader = _StandInLoader()
            return importlib.machinery.ModuleSpec(fullname, loader, is_package=True)
        top, *rest = fullname.split(".")
        if top not in self.roots:
            return None
        place = self.root.joinpath(self.roots[top], *rest)
        if fullname in self.bare:
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return importlib.machinery.PathFinder.find_spec(fullname, [str(place.parent)])


class _StandInLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    """A module that has whatever is asked of it, so that others can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()


class Placeholder:
    """What a stand-in has: it can be called, decorate, be inherited from and annotate.

    >>> @Placeholder().jit
    ... def kernel():
    ...     return 1
    >>> kernel()
    1
    >>> class Derived(Placeholder().Base):
    ...     pass
    >>> Derived.__bases__
    (<class 'object'>,)
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What it is called with, if that is one thing that can be called: it decorates."""
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, item: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__
