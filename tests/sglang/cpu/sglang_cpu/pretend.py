"""Packages that need CUDA, as names: SGLang imports hundreds and, on CPU, calls hardly one."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Call = Callable[..., Any]


def pretend(package: str, call: Call | None = None) -> Callable[[str], Any]:
    """Make every module under `package` importable; returns the package's own `__getattr__`.

    A capitalised name is a class fit for a base, an `except` and an enum, another one a function
    that does `call`; by default it fails, since what it should compute is not there.
    """
    sys.meta_path.append(_Modules(package, call))
    return _names(package, call)


def _names(module: str, call: Call | None) -> Callable[[str], Any]:
    def name(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if attribute[:1].isupper():
            return _Class(attribute, (_Object,), {"__module__": module})
        return _Name(f"{module}.{attribute}", call)

    return name


class _Class(type):
    """A class that has every attribute."""

    def __getattr__(cls, attribute: str) -> Any:
        return _names(f"{cls.__module__}.{cls.__name__}", None)(attribute)


class _Object(Exception, metaclass=_Class):
    """What such a class makes, of any arguments."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()


class _Name:
    """A function, or a module that nobody imported: which one shows in how it is used."""

    def __init__(self, name: str, call: Call | None) -> None:
        self._name = name
        self._call = call

    def __getattr__(self, attribute: str) -> Any:
        return _names(self._name, self._call)(attribute)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call is None:
            raise RuntimeError(f"{self._name} is not there on CPU")
        return self._call(*args, **kwargs)


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module under one package, after the real files."""

    def __init__(self, package: str, call: Call | None) -> None:
        self._prefix = package + "."
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _names(module.__name__, self._call)
