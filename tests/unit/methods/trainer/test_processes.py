import pytest
import torch

from condensery.methods.trainer.processes import Processes, joined, own_device


def test_who_is_started_alone_is_alone() -> None:
    gradient = torch.ones(2)
    with joined(torch.device("cpu")) as processes:
        assert processes == Processes(rank=0, count=1)
        processes.add_up(gradient)
        assert processes.agree(True, torch.device("cpu"))
        assert not processes.agree(False, torch.device("cpu"))
    assert gradient.tolist() == [1, 1]


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert own_device(cuda) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(cuda) == torch.device("cuda", 3)
    assert own_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert own_device(torch.device("cpu")) == torch.device("cpu")
