import copy

import pytest
import torch
from torch import nn

from condensery.methods.trainer.optimizer import Group, MasterAdamW


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def groups_of(net: nn.Module) -> list[Group]:
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim == 1]
    return [Group(matrices, 0.01, 0.1), Group(vectors, 0.02, 0.0)]


def loss_of(net: nn.Module, step: int) -> torch.Tensor:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
    output = net(inputs.to(next(net.parameters()).dtype))
    return 10 * output.float().pow(2).sum()


def test_in_fp32_it_is_torchs_adamw() -> None:
    ours, theirs = network(), network()
    optimizer = MasterAdamW(groups_of(ours), betas=(0.9, 0.98))
    reference = torch.optim.AdamW(
        [
            {
                "params": group.parameters,
                "lr": group.learning_rate,
                "weight_decay": group.weight_decay,
            }
            for group in groups_of(theirs)
        ],
        betas=(0.9, 0.98),
        eps=1e-8,
    )
    base = [group["lr"] for group in reference.param_groups]
    for step in range(8):
        scale = 1 - step / 10
        loss_of(ours, step).backward()
        norm = optimizer.step(scale, clip=1.0)

        reference.zero_grad()
        loss_of(theirs, step).backward()
        parameters = [p for group in reference.param_groups for p in group["params"]]
        wanted = nn.utils.clip_grad_norm_(parameters, 1.0)
        for group, rate in zip(reference.param_groups, base, strict=True):
            group["lr"] = rate * scale
        reference.step()

        assert norm == pytest.approx(float(wanted))
        assert norm > 1  # so that clipping is put to the test
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)  # ours is fused
            assert a.grad is None


def test_bf16_weights_follow_fp32_masters_that_keep_what_bf16_loses() -> None:
    net = network(torch.bfloat16)
    optimizer = MasterAdamW([Group(list(net.parameters()), 1e-5, 0.0)])
    before = [p.detach().clone() for p in net.parameters()]
    masters = [m.clone() for m in optimizer.masters()]
    for step in range(5):
        loss_of(net, step).backward()
        optimizer.step(1.0, clip=1.0)
    for parameter, master in zip(net.parameters(), optimizer.masters(), strict=True):
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, master.bfloat16())
    # Five steps of 1e-5 vanish in most bf16 weights, but not in their masters.
    moved = [(m - n).abs().max() for m, n in zip(optimizer.masters(), masters, strict=True)]
    assert min(moved) > 2e-5
    same = [(a == b).float().mean() for a, b in zip(net.parameters(), before, strict=True)]
    assert min(same) > 0.5


def test_a_parameter_without_a_gradient_stays() -> None:
    net = network()
    optimizer = MasterAdamW([Group(list(net.parameters()), 0.01, 0.1)])
    before = copy.deepcopy(net.state_dict())
    net[2](torch.ones(1, 8)).sum().backward()
    optimizer.step(1.0, clip=1.0)
    assert torch.equal(net[0].weight, before["0.weight"])
    assert not torch.equal(net[2].weight, before["2.weight"])


def test_state_put_back_goes_on_as_if_nothing_had_happened() -> None:
    def run(net: nn.Module, optimizer: MasterAdamW, steps: range) -> None:
        for step in steps:
            loss_of(net, step).backward()
            optimizer.step(1.0, clip=1.0)

    whole = network(torch.bfloat16)
    optimizer = MasterAdamW(groups_of(whole))
    run(whole, optimizer, range(4))
    state = {name: value.clone() for name, value in optimizer.state().items()}
    run(whole, optimizer, range(4, 8))

    resumed = network(torch.bfloat16)
    second = MasterAdamW(groups_of(resumed))
    second.load_state(state)
    run(resumed, second, range(4, 8))
    for a, b in zip(optimizer.masters(), second.masters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
