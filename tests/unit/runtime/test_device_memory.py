import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from condensery.networks.linear import Dense
from condensery.runtime.device import weight_bytes


class Half:
    """Is not a module itself, and holds one and a tensor."""

    def __init__(self, inner: nn.Module, words: torch.Tensor) -> None:
        self._inner = inner
        self._words = words
        self.other = "no tensor"


GIVING = """
import gc, weakref
from condensery.runtime.device import prepare_process, release_memory

class Circle:
    pass

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

prepare_process()  # malloc keeps what it is given back, as in a server
gc.disable()
circle = Circle()
circle.itself = circle
gone = weakref.ref(circle)
del circle
pieces, between = [], []
for number in range(1600):
    pieces.append(bytes(64 << 10))
    between.append(bytes(1 << 10))  # stays, and keeps the heap from shrinking by itself
full = resident()
pieces.clear()
kept = resident()
release_memory()
print(full - kept, kept - resident(), gone() is None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_what_is_free_goes_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIVING], capture_output=True, text=True, timeout=240, check=True
    )
    before, released, circle = done.stdout.split()
    # Of 100 MiB, in KiB: malloc keeps them until it is told not to, and then but for pages' edges.
    assert int(before) < 20 << 10
    assert int(released) > 60 << 10
    assert circle == "True"


LOADING = """
import threading
from condensery.runtime.device import prepare_process, release_memory

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

def load():
    pieces = [b"x" * (64 << 10) for _ in range(600)]
    full = resident()
    pieces.clear()
    kept = resident()
    release_memory()
    print(full - kept, kept - resident())

prepare_process()
thread = threading.Thread(target=load)  # its arena is its own
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_the_end_of_the_loading_threads_arena_goes_back_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=240, check=True
    )
    before, released = map(int, done.stdout.split())
    # Of 38 MiB, in KiB.
    assert before < 4 << 10
    assert released > 34 << 10


SHAPES = """
import threading
import torch
from condensery.networks import native
from condensery.networks.linear import Dense
from condensery.runtime.device import prepare_process, trim_memory

def resident():
    trim_memory()  # what is left is in use
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10

def multiply(first, last):
    with torch.inference_mode():
        for rows in range(first, last):
            dense(torch.zeros(rows, 64))

prepare_process()
native.has_panels = lambda _: False  # which prepares nothing
dense = Dense(torch.randn(256, 64), None, fp32=True)
multiply(1, 601)
full = resident()
multiply(601, 1201)
print(dense.form, resident() - full)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_products_prepared_for_shapes_are_let_go_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHAPES], capture_output=True, text=True, timeout=240, check=True
    )
    form, grown = done.stdout.split()
    # With the bounds that torch and oneDNN have by themselves these 600 take 124 MiB more.
    assert form == "torch" or int(grown) < 64


def test_every_weight_counts_once_whoever_holds_it() -> None:
    inner = nn.Linear(8, 4)  # 36 numbers
    inner.register_buffer("scale", torch.ones(2, dtype=torch.float64))
    words = torch.zeros(10, 3, dtype=torch.bfloat16)
    wanted = {"cpu": 36 * 4 + 2 * 8 + 30 * 2}
    assert weight_bytes([Half(inner, words)]) == wanted
    assert weight_bytes([Half(inner, words), inner, Half(inner, words)]) == wanted


def test_weights_that_are_packed_count_as_before() -> None:
    for fp32 in (False, True):
        dense = Dense.of(nn.Linear(16, 32, bias=False), fp32=fp32)  # no panel to be filled up
        assert weight_bytes([dense]) == {"cpu": 16 * 32 * 4}


MAPPED = """
import re, sys
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from condensery.runtime.device import release_files

def resident(file):
    text = open("/proc/self/smaps").read()
    found = re.findall(rf"{file}\\n(?:\\w+:.*\\n)*?Rss: +(\\d+)", text)
    return sum(map(int, found)) >> 10

class Parts:
    pass

folder, kept = sys.argv[1], {}
for name in ("read", "written", "another"):
    save_file({"weight": torch.arange(2.0**21)}, f"{folder}/{name}.safetensors")  # 8 MiB
    with safe_open(f"{folder}/{name}.safetensors", framework="pt") as opened:
        kept[name] = opened.get_tensor("weight")
sums = [float(tensor.double().sum()) for tensor in kept.values()]
kept["written"][5] = -1.0
parts = Parts()
parts.read, parts.written = kept["read"], kept["written"]
print(*[resident(f"{name}.safetensors") for name in kept])
release_files([parts])
print(*[resident(f"{name}.safetensors") for name in kept])
print(float(kept["read"].double().sum()) == sums[0], float(kept["written"][5]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps")
def test_mapped_weights_are_let_go_but_for_those_that_were_written_to(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAPPED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.split() == [*"888", *"088", "True", "-1.0"]
