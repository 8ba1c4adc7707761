"""Optimisers that a CUDA graph can hold: nothing in their step is decided on the host."""

from typing import Any

import torch

_FLAGS = ("capturable", "fused", "foreach")
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Those that have one kernel for all of their step, which reads the learning rate on the device."""


def make_capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> str:
    """Have an optimiser count on the device and read its learning rate there; schedulers fill it.

    Returns why that cannot be done; nothing when it is.
    """
    kind = type(optimizer).__name__
    for group in optimizer.param_groups:
        fused = isinstance(optimizer, _FUSED) and group.get("fused") is not False
        if not fused and "capturable" not in group:
            return f"the optimiser {kind} decides on the host"
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
    """Load a state that may come from another kind of device: how to compute is our own matter."""
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
                    # In the parameter's own order in memory, which fused kernels insist on.
                    held[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
