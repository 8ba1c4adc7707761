import pytest
import torch
from torch import nn

from echelon.train.optimizers import load_optimizer, make_capturable

CPU = torch.device("cpu")


def moved(make, steps=3):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    optimizer = make(model.parameters())
    for _ in range(steps):
        model(torch.rand(2, 3, 5, 5)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_learning_rate_becomes_a_tensor_that_schedulers_fill():
    _, optimizer = moved(lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    assert make_capturable(optimizer, CPU) == ""
    rate = optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.05)
    assert make_capturable(optimizer, CPU) == ""
    assert optimizer.param_groups[0]["lr"] is rate


@pytest.mark.parametrize(
    ("make", "capturable"),
    [
        (torch.optim.AdamW, True),
        (torch.optim.Adadelta, True),
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=False), False),
        (torch.optim.Adagrad, False),
    ],
)
def test_an_optimiser_that_decides_on_the_host_is_named(make, capturable):
    _, optimizer = moved(make)
    why_not = make_capturable(optimizer, CPU)
    assert (why_not == "") is capturable
    assert capturable or type(optimizer).__name__ in why_not


def test_a_state_of_another_device_is_computed_with_our_own_way():
    _, theirs = moved(lambda p: torch.optim.AdamW(p, lr=0.25))
    make_capturable(theirs, CPU)
    saved = theirs.state_dict()
    model, ours = moved(lambda p: torch.optim.AdamW(p, lr=0.5), steps=0)
    model.to(memory_format=torch.channels_last)
    load_optimizer(ours, saved)
    group = ours.param_groups[0]
    assert (group["lr"], group["capturable"], group["fused"]) == (0.25, False, None)
    held = ours.state[model.weight]["exp_avg"]
    assert held.stride() == model.weight.stride()
    assert torch.equal(held, theirs.state[theirs.param_groups[0]["params"][0]]["exp_avg"])
    model(torch.rand(2, 3, 5, 5)).sum().backward()
    ours.step()
