import subprocess
import sys
from typing import get_args

import pytest
import torch

from condensery.errors import SettingError
from condensery.networks import native
from condensery.networks.quantised import EncoderWeights
from condensery.runtime.device import (
    check_weights,
    choose_common_dtype,
    choose_device,
    choose_dtype,
    choose_encoder_weights,
    choose_weights,
)


def test_settings_name_the_dtype() -> None:
    assert choose_dtype("cpu", "float32") == torch.float32
    assert choose_dtype("cpu", "bfloat16") == torch.bfloat16
    with pytest.raises(SettingError, match="'int8' is none of"):
        choose_dtype("cpu", "int8")


@pytest.mark.parametrize(
    ("amx", "avx512", "wanted"),
    [
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),
        (False, False, torch.float32),
    ],
)
def test_a_cpu_computes_in_bf16_only_where_its_hardware_does(
    monkeypatch: pytest.MonkeyPatch, amx: bool, avx512: bool, wanted: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    assert choose_dtype("cpu") == wanted


def test_devices_that_share_a_model_compute_in_what_suits_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert choose_common_dtype([cuda, cuda]) == torch.bfloat16
    assert choose_common_dtype([cuda, cpu]) == torch.float32
    assert choose_common_dtype([cuda, cpu], "bfloat16") == torch.bfloat16


HALF, WHOLE = torch.bfloat16, torch.float32
MEASURED = {"generator_weights": {"dtype": "bfloat16", "int8": {"em": 70.1, "em_lost": 0.4}}}


def lost(
    em: object, bits: str = "int8", dtype: str = "bfloat16", **more: object
) -> dict[str, object]:
    return {"generator_weights": {"dtype": dtype, bits: {"em_lost": em}, **more}}


@pytest.fixture(autouse=True)
def rounds_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 only large matrices are rounded, as where products of 8 bits are torch's."""
    monkeypatch.setattr(native, "has_ints", lambda: False)


@pytest.mark.parametrize(
    ("quality", "wanted"),
    [
        (MEASURED, "int8"),
        (lost(-0.1), "int8"),
        (lost(0.5), "float"),
        (lost(0.0, "int4"), "float"),
        (lost("little"), "float"),
        (lost(0.1, dtype="float32"), "int8"),
        (lost(0.1, dtype=""), "float"),
        ({"generator_weights": "int8"}, "float"),
        ({}, "float"),
    ],
)
def test_weights_are_rounded_by_themselves_only_where_a_report_says_it_costs_little(
    monkeypatch: pytest.MonkeyPatch, quality: dict[str, object], wanted: str
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert choose_weights(cpu, HALF, "auto", quality) == wanted
    assert choose_weights(torch.device("cuda"), HALF, "auto", quality) == "float"
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(native, "has_words", lambda: False)
    assert choose_weights(cpu, HALF, "auto", quality) == "float"
    monkeypatch.setattr(native, "has_words", lambda: True)
    assert choose_weights(cpu, HALF, "auto", quality) == wanted


def test_what_was_measured_in_bf16_says_nothing_of_fp32_where_more_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert choose_weights(cpu, WHOLE, "auto", MEASURED) == "float"
    assert choose_weights(cpu, WHOLE, "auto", lost(0.1, dtype="float32")) == "int8"


def test_what_was_measured_holds_where_no_more_matrices_are_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    few, many = lost(0.1, smallest=1 << 20), lost(0.1, smallest=1 << 18)
    for dtype, quality, wanted in (
        *((HALF, few, "int8"), (HALF, many, "int8")),
        *((WHOLE, few, "float"), (WHOLE, many, "int8")),
        (HALF, lost(0.1, smallest="many"), "float"),
    ):
        assert choose_weights(cpu, dtype, "auto", quality) == wanted
    monkeypatch.setattr(native, "has_ints", lambda: True)  # which rounds smaller ones too
    assert choose_weights(cpu, HALF, "auto", few) == "float"
    assert choose_weights(cpu, HALF, "auto", lost(0.1)) == "float"
    assert choose_weights(cpu, HALF, "auto", many) == "int8"


def test_weights_that_a_device_is_not_for_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    for name in ("_is_vnni_supported", "_is_amx_tile_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    monkeypatch.setattr(native, "has_words", lambda: False)
    for setting, needed in (("int8", "AVX512-VNNI, AMX or AVX2 alone"), ("int4", "AVX512")):
        for device in (cpu, torch.device("cuda")):
            with pytest.raises(SettingError, match=needed) as caught:
                choose_weights(device, HALF, setting, MEASURED)
            assert caught.value.field == "generator_weights"
    with pytest.raises(SettingError, match="'int2' is none of auto, float, int8, int4"):
        choose_weights(cpu, HALF, "int2", {})
    assert choose_weights(cpu, HALF, "float", MEASURED) == "float"


def test_weights_of_what_reads_many_rows_have_16_bits_by_themselves_where_those_are_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, cuda, field = torch.device("cpu"), torch.device("cuda"), "encoder_weights"
    monkeypatch.setattr(native, "has_words", lambda: True)
    assert choose_encoder_weights(field, cpu, "auto", "auto") == "int16"
    for asked in ("float32", "bfloat16"):
        assert choose_encoder_weights(field, cpu, "auto", asked) == "float"
    assert choose_encoder_weights(field, cuda, "auto", "auto") == "float"
    for setting in get_args(EncoderWeights):
        assert choose_encoder_weights(field, cpu, setting, "float32") == setting
    monkeypatch.setattr(native, "has_words", lambda: False)
    assert choose_encoder_weights(field, cpu, "auto", "auto") == "float"
    for device in (cpu, cuda):
        with pytest.raises(SettingError, match="'int16' is for a CPU with AVX2 alone") as caught:
            choose_encoder_weights("compressor_weights", device, "int16", "auto")
        assert caught.value.field == "compressor_weights"


def test_a_device_that_is_not_there_is_told_by_the_setting_that_names_it() -> None:
    with pytest.raises(SettingError, match="generator_device='mps'") as caught:
        choose_device("mps", "generator_device")
    assert caught.value.field == "generator_device"


@pytest.mark.parametrize("setting", ["abacus", "mps"])
def test_a_device_that_is_not_there_is_a_setting_error(setting: str) -> None:
    with pytest.raises(SettingError, match=setting):
        choose_device(setting)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_auto_is_the_cpu_and_asking_for_cuda_fails() -> None:
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(SettingError, match="no CUDA device"):
        choose_device("cuda")


def test_a_prepared_process_holds_one_thread_and_can_allocate() -> None:
    code = (
        "import torch; from condensery.runtime.device import prepare_process, tune_allocator;"
        "prepare_process(); assert torch.get_num_threads() == 1;"
        "[torch.empty(30_000_000).fill_(1) for _ in range(3)]; print(tune_allocator())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() in ("True", "False")


WEIGHTS = """
import torch
from pathlib import Path
from condensery.runtime.device import mapped_weights, prepare_process

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024

def weights():
    return [torch.ones(2**18) for _ in range(64)]  # 1 MiB each

prepare_process()
with mapped_weights():
    made = weights()
before = held()
del made
print(before - held())
made = weights()
before = held()
del made
print(before - held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is told by /proc")
def test_weights_go_back_to_the_system_when_they_are_freed_and_activations_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WEIGHTS], capture_output=True, text=True, timeout=60, check=True
    )
    weights, activations = map(int, done.stdout.split())
    assert weights >= 60
    assert activations < 10


def test_encoders_weights_are_refused_by_the_setting_that_names_them() -> None:
    with pytest.raises(SettingError, match="encoders run on cuda here") as caught:
        check_weights("encoder_weights", torch.device("cuda"), "int8")
    assert caught.value.field == "encoder_weights"
    check_weights("encoder_weights", torch.device("cuda"), "float")
    with pytest.raises(SettingError, match="compressors run on cuda here") as caught:
        check_weights("compressor_weights", torch.device("cuda"), "int8")
    assert caught.value.field == "compressor_weights"
    with pytest.raises(SettingError, match=r"weights='int8' is for a CPU .* and encoders run on"):
        check_weights("weights", torch.device("cuda"), "int8")
