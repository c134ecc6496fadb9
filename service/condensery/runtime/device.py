"""Where forward passes run: the device, the dtype, the allocator, the memory weights take."""

import ctypes
import gc
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from condensery.errors import SettingError
from condensery.networks.quantised import (
    SMALLEST,
    SMALLEST_HALF,
    EncoderWeights,
    Weights,
    can_quantise,
    smallest,
)
from condensery.runtime.workers import set_thread_count

DTypeSetting = Literal["auto", "float32", "bfloat16"]
WeightsSetting = Literal["auto", "float", "int8", "int4"]
EncoderWeightsSetting = Literal["auto", "float", "int16", "int8"]
# What rounding a generator's weights may cost its answers where nobody asked for it: exact match,
# percent, on the questions that its report was measured on.
MOST_EM_LOST = 0.5
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
# What a CPU has where such weights are fast.
NEEDED = {"int16": "AVX2 alone", "int8": "AVX512-VNNI, AMX or AVX2 alone", "int4": "AVX512"}

# glibc's mallopt parameters (malloc.h).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
WEIGHT_MMAP_BYTES = 128 << 10  # glibc's own default
MMAP_BYTES = 32 << 20  # glibc documents no more; with 1 GiB the page faults came back
TRIM_BYTES = 1 << 30
LEAST_TRIM_BYTES = 128 << 10  # glibc's own default
LARGE_BYTES = 256 << 10  # malloc looks at an arena's end from 64 KiB on
# A private mapping of a file of weights in /proc/self/smaps, and how much of it was written to.
MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+p \S+ \S+ \S+ +/.*\.safetensors\n"
    r"(?:\w+:.*\n)*?Anonymous: +(\d+) kB\n(?:\w+:.*\n)*?Swap: +(\d+) kB$",
    re.MULTILINE,
)
# oneDNN's products are prepared for their shapes, up to 0.6 MB each, and kept: by default 1,024 a
# thread by torch and 1,024 more by oneDNN itself, which took an hour's load to fill, and 0.5 GiB.
# Read when the first product is computed.
PRIMITIVES_KEPT = {"LRU_CACHE_CAPACITY": "256", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512"}


def choose_device(setting: str = "auto", field: str = "device") -> torch.device:
    """Return the device that ``setting``, called ``field``, names; "auto" is CUDA if there is one.

    Raises:
        SettingError: There is no such device here.
    """
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(setting)
    except RuntimeError as error:
        raise SettingError(f"{field}={setting!r} is no device name", field=field) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"{field}={setting!r}, but torch sees no CUDA device", field=field)
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"{field}={setting!r} is neither cpu nor cuda", field=field)
    return device


def choose_dtype(device: torch.device | str, setting: DTypeSetting | str = "auto") -> torch.dtype:
    """Return what to compute in on ``device``.

    "auto" is bf16 where the hardware multiplies it natively (AMX or AVX512-bf16 on a CPU;
    elsewhere it is emulated and slower than fp32), else fp32.

    Raises:
        SettingError: The setting is none of the three.
    """
    if setting == "float32":
        return torch.float32
    if setting == "bfloat16":
        return torch.bfloat16
    if setting != "auto":
        raise SettingError(
            f"dtype={setting!r} is none of auto, float32, bfloat16", field="dtype", value=setting
        )
    if torch.device(device).type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def choose_common_dtype(
    devices: Iterable[torch.device], setting: DTypeSetting | str = "auto"
) -> torch.dtype:
    """Return what to compute in on all of these; "auto" is bf16 where each multiplies it natively.

    Raises:
        SettingError: As in ``choose_dtype``.
    """
    chosen = {choose_dtype(device, setting) for device in devices}
    return torch.float32 if torch.float32 in chosen else torch.bfloat16


def choose_weights(
    device: torch.device,
    dtype: torch.dtype,
    setting: WeightsSetting | str,
    quality: Mapping[str, Any],
) -> Weights:
    """Return what a generator's weights are held as on ``device``.

    "auto" is 8 bits where the device is for them and the model's report says that they cost less
    than ``MOST_EM_LOST``, measured where no fewer matrices are rounded than here; else floats. 4
    bits are for who asks for them: they are faster for one or two callers, and slower than 8 for
    many.

    Args:
        dtype: What floats are computed in there.
        quality: Of the model's manifest; ``generator_weights`` holds what ``condensery eval
            weights`` measured.

    Raises:
        SettingError: The setting is none of the four, or this device is not for such weights.
    """
    if setting == "auto":
        cheap = _is_cheap(quality.get("generator_weights"), dtype)
        return "int8" if cheap and can_quantise("int8", device) else "float"
    if setting not in WEIGHTS:
        raise SettingError(
            f"generator_weights={setting!r} is none of auto, {', '.join(WEIGHTS)}",
            field="generator_weights",
            value=setting,
        )
    check_weights("generator_weights", device, setting)
    return setting


def choose_encoder_weights(
    field: str, device: torch.device, setting: EncoderWeightsSetting, dtype: DTypeSetting
) -> EncoderWeights:
    """Return what the weights of what reads many rows at once are held as on ``device``.

    "auto" is 16 bits where those are faster than floats, as "auto" of ``dtype`` is bf16 elsewhere;
    who asks for a dtype has it.

    Args:
        field: The setting's name.
        dtype: The setting of that name.

    Raises:
        SettingError: This device is not for such weights.
    """
    if setting == "auto":
        return "int16" if dtype == "auto" and can_quantise("int16", device) else "float"
    check_weights(field, device, setting)
    return setting


def check_weights(field: str, device: torch.device, setting: Weights | EncoderWeights) -> None:
    """Check that a device is for such weights.

    Args:
        field: The setting's name, which says whose they are; encoders', if not those of pairs.

    Raises:
        SettingError: It is not.
    """
    if not can_quantise(setting, device):
        needed = NEEDED[setting]
        pairs = {"generator_weights": "generators", "compressor_weights": "compressors"}
        who = pairs.get(field, "encoders")
        raise SettingError(
            f"{field}={setting!r} is for a CPU with {needed}, and {who} run on {device} here",
            field=field,
            value=setting,
        )


def _is_cheap(measured: object, dtype: torch.dtype) -> bool:
    """Tell whether a manifest says that 8 bits cost little of what would be rounded."""
    if not isinstance(measured, Mapping):
        return False
    rounded = {"bfloat16": SMALLEST_HALF, "float32": SMALLEST}.get(measured.get("dtype", ""))
    rounded = measured.get("smallest", rounded)  # older ones don't say it
    if not isinstance(rounded, int) or rounded > smallest(dtype):
        return False
    row = measured.get("int8")
    lost = row.get("em_lost") if isinstance(row, Mapping) else None
    return isinstance(lost, int | float) and lost < MOST_EM_LOST


def tune_allocator() -> bool:
    """Make glibc's malloc keep what torch frees; returns whether it does.

    By default each large activation is mapped from the kernel and given back, forward after
    forward: 1,500 to 10,000 page faults a batch of passages, and up to 14 % of its time.
    """
    mapped = _mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    return _mallopt(M_TRIM_THRESHOLD, TRIM_BYTES) and mapped


@contextmanager
def mapped_weights() -> Iterator[None]:
    """Map what is large and allocated in this block, weights, from the kernel by itself.

    It goes back there when it is freed. In malloc's arenas weights would lie between what others
    allocate, and ``malloc_trim`` gives back no end of an arena but the main one's: of 43 MiB of
    weights up to 5 MiB stayed behind each time.
    """
    _mallopt(M_MMAP_THRESHOLD, WEIGHT_MMAP_BYTES)
    try:
        yield
    finally:
        _mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


def _mallopt(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL("libc.so.6").mallopt(option, value))
    except (OSError, AttributeError):
        return False  # another libc: no such knob, nothing lost but the speed


def prepare_process() -> None:
    """Set up torch and the allocator; the composition root calls this before any forward.

    The main thread must hold one OMP thread first: where it has ever run with more, the workers'
    pools come on top of its own and every parallel region is 40 % slower.
    """
    for name, value in PRIMITIVES_KEPT.items():
        os.environ.setdefault(name, value)
    set_thread_count(1)
    tune_allocator()


def weight_bytes(parts: Iterable[object]) -> Mapping[str, int]:
    """Return the bytes of every tensor that the parts hold, by device; shared ones count once.

    Args:
        parts: Modules, or objects whose attributes are modules and tensors.
    """
    seen: set[int] = set()
    sizes: Counter[str] = Counter()
    for part in parts:
        for tensor in _tensors(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                # Prepacked weights are opaque, and have no bytes of their own to ask for.
                sizes[str(tensor.device)] += tensor.numel() * tensor.element_size()
    return dict(sizes)


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, nn.Module):
        for module in part.modules():
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)
            yield from (value for value in vars(module).values() if isinstance(value, Tensor))
        return
    for value in getattr(part, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from _tensors(value)


def release_memory() -> None:
    """Return to the system what is free: reference cycles, CUDA's pool, and malloc's arenas.

    The last is what counts on a CPU: malloc keeps what is freed (``tune_allocator``), as every
    forward pass would else pay for its pages again; after a model has gone that is no use. Who
    loads models calls this on the thread that it loads them on.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _trim_own_arena()
    trim_memory()


def _trim_own_arena() -> None:
    """Return the end of the calling thread's arena, which ``malloc_trim`` leaves.

    malloc does that itself where enough lies free there as something large is freed: for one such
    call little is enough. Without it fifty loads left up to 30 MiB behind.
    """
    if not _mallopt(M_TRIM_THRESHOLD, LEAST_TRIM_BYTES):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype = ctypes.c_void_p
        libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(LARGE_BYTES))))
    finally:
        _mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)


def release_files(parts: Iterable[object]) -> None:
    """Let go of what is resident of weight files that a model just read maps.

    Reading it touched all of them, and then matrices are held in layouts of our own. What is left
    to read, rows of word tables, comes back from the system's cache. A mapping that was written to
    is left alone: what was written is nowhere else.

    Args:
        parts: As of ``weight_bytes``. Their tensors, held meanwhile, keep mappings where they are.
    """
    held = [tensor for part in parts for tensor in _tensors(part) if tensor.device.type == "cpu"]
    places = {tensor.data_ptr() for tensor in held if tensor.layout == torch.strided}
    try:
        smaps = Path("/proc/self/smaps").read_text(errors="surrogateescape")
        advise = ctypes.CDLL("libc.so.6").madvise
    except (OSError, AttributeError):
        return
    for start, end, *written in re.findall(MAPPING, smaps):
        first, past = int(start, 16), int(end, 16)
        if not any(map(int, written)) and any(first <= place < past for place in places):
            advise(ctypes.c_void_p(first), ctypes.c_size_t(past - first), mmap.MADV_DONTNEED)
    del held


def trim_memory() -> None:
    """Return to the system what lies free in malloc's arenas; takes about 10 ms.

    Forward passes notice nothing of it where it happens every few minutes.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another libc: it decides for itself
        return
