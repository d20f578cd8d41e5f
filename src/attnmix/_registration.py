"""Registers our model families with timm without making `import attnmix` wait for timm and torch."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


def register_with_timm() -> None:
    """Register `attnmix.models` now if timm is imported, else as soon as it is."""
    if "timm" in sys.modules:
        importlib.import_module("attnmix.models")
    else:
        sys.meta_path.insert(0, _OnceTimmIsImported())


class _OnceTimmIsImported(importlib.abc.MetaPathFinder):
    """Finds timm as Python would, and has it followed by our models when it runs; being asked is not enough.

    (transformers asks whether there is a timm long before anyone imports it.)
    """

    asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "timm" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec("timm")
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            load(module)
            importlib.import_module("attnmix.models")

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
