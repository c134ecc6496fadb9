"""What a server imports of PyTorch and transformers, and what only once somebody asks for it."""

import gc
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.networks.heavy_imports import kept_for_good

IMPORTS = """
import gc
from condensery.networks.heavy_imports import kept_for_good
with kept_for_good():
    import xml.dom.expatbuilder
found = {id(one) for one in gc.get_objects()}
print(gc.isenabled(), id(xml.dom.expatbuilder.__dict__) in found)
"""
STORED = """
import sys
from pathlib import Path
from condensery.networks.heavy_imports import import_networks
import_networks()
import torch
from transformers import LlamaConfig
from condensery.networks import decoders
from condensery.runtime.registry import ModelRegistry
from condensery.store.importing import import_minilm
from condensery.store.store import ModelStore, shipped_store
store = ModelStore(shipped_store(), Path(sys.argv[1]))
import_minilm(store)
registry = ModelRegistry.load(store, device=torch.device("cpu"), dtype=torch.float32, workers=1)
assert not registry.refusals(), registry.refusals()
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 9}
decoders.fill_buffers(decoders.build(LlamaConfig(**sizes)), torch.device("cpu"))
names = ("torch._dynamo.convert_frame", "torch._inductor", "torch.distributed.tensor", "sympy")
print(len(registry.models()), [name for name in names if name in sys.modules])
registry.close(0)
"""
ASKED = """
import sys
from condensery.networks.heavy_imports import import_networks
import_networks()
import torch
import torch.distributed
before = "torch._dynamo.convert_frame" in sys.modules
compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
x = torch.arange(4.0)
same = bool(torch.equal(compiled(x), x.sin() + 1))
counted = torch._dynamo.utils.counters["stats"]["unique_graphs"]
wrapped = torch.compiler.disable(len) is not len
print(before, same, counted, wrapped, torch.distributed.is_available())
"""
BY_A_PART = """
import sys
from condensery.networks.heavy_imports import import_networks
import_networks()
import torch
import torch._dynamo.config as config
from torch._dynamo.exc import UserError
import torch._dynamo.exc
before = config.verbose
with torch._dynamo.config.patch(verbose=not before):
    print(config.verbose is not before, UserError is torch._dynamo.exc.UserError)
torch.compile(len)
print(torch._dynamo.backends.registry is sys.modules["torch._dynamo.backends.registry"])
"""
LOOKED = """
import sys
opened = []
sys.addaudithook(lambda name, args: name == "open" and opened.append(str(args[0])))
from condensery.networks.heavy_imports import import_networks
import_networks()
import transformers
import transformers.utils.import_utils as looks
from transformers import models
from transformers.loss.loss_utils import LOSS_MAPPING
read = len([path for path in opened if path.endswith("/modeling_zamba.py")])
left = looks.create_import_structure_from_path.cache_info().maxsize is None
print(read, left, "ZambaModel" in dir(models), "ZambaModel" in dir(transformers))
print("scipy" in sys.modules, looks.is_scipy_available(), len(LOSS_MAPPING) > 9)
"""
LATE = """
import transformers.modeling_utils, torch, sys
there = sys.modules["torch._dynamo"]
from condensery.networks.heavy_imports import import_networks
import_networks()
print(sys.modules["torch._dynamo"] is there, torch._dynamo is there)
"""


def run(code: str, *args: str) -> list[str]:
    """Run code in a process of its own, since what is imported stays; returns what it printed."""
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_imported_for_good_is_not_looked_through_for_garbage_again() -> None:
    assert run(IMPORTS) == ["True False"]


def test_an_import_that_fails_leaves_garbage_to_be_collected() -> None:
    with pytest.raises(ModuleNotFoundError), kept_for_good():
        import there_is_no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


def test_no_model_that_is_shipped_needs_the_compiler(tmp_path: Path) -> None:
    assert run(STORED, str(tmp_path))[-1] == "5 []"


def test_whoever_asks_for_the_compiler_has_it() -> None:
    assert run(ASKED) == ["False True 1 True True"]


def test_whoever_asks_for_a_part_of_it_has_the_whole_once() -> None:
    assert run(BY_A_PART) == ["True True", "True"]


def test_folders_of_networks_are_looked_through_once_and_scipy_is_left_out() -> None:
    here = importlib.util.find_spec("scipy") is not None
    assert run(LOOKED) == ["1 False True True", f"False {here} True"]


def test_a_compiler_that_is_there_is_left_alone() -> None:
    assert run(LATE) == ["True True"]
