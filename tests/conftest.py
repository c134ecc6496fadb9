"""What holds for every test: one thread an operation, no model hub, GPU tests only beside a GPU."""

import os

import pytest

# Before torch and faiss are imported, and inherited by the servers that tests start: two pools of
# threads on a small machine starve each other, and tests are run side by side with other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
