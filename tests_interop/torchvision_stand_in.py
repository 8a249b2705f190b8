"""timm imports torchvision for its data pipelines, of which no build fits torch's CPU build.

Its networks use nothing of it: a name to import is enough, and the networks are timm's own.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


def import_timm() -> types.ModuleType:
    """timm itself, over torchvision where there is one."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())
    import timm

    return timm


class _Anything(type):
    """A class whose attributes are their own names, as those of an enumeration that is listed."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass
