"""Scripts that are in no package, as modules."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load_script(path: Path, name: str) -> Any:
    """Run a script as a module of that name, which stays known by it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
