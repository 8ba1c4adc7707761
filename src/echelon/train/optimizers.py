"""Make optimizers capturable as CUDA graphs: no part of their step is controlled by the host."""

from typing import Any

import torch

_FLAGS = ("capturable", "fused", "foreach")
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers with a fused kernel for the step, which reads the learning rate on the device."""


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> str:
    """Move an optimizer's step count and learning rate to the device; schedulers fill the latter.

    Return why this is not possible, or ''.
    """
    kind = type(optimizer).__name__
    for group in optimizer.param_groups:
        fused = isinstance(optimizer, _FUSED) and group.get("fused") is not False
        if not fused and "capturable" not in group:
            return f"the optimizer {kind} is not capturable"
        if fused:
            group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
        if not isinstance(group["lr"], torch.Tensor) or group["lr"].device != device:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(device)
    return ""


def load_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Load a state that may come from another type of device, keeping the implementation flags."""
    groups = optimizer.param_groups
    own = [{flag: group[flag] for flag in _FLAGS if flag in group} for group in groups]
    optimizer.load_state_dict(state)
    for group, flags in zip(optimizer.param_groups, own, strict=True):
        group.update(flags)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"] = float(group["lr"])
        for parameter in group["params"]:
            held = optimizer.state.get(parameter, {})
            for name, value in held.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    # In the parameter's memory format, which fused kernels require.
                    held[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
