"""Echelon's public API.

Names are loaded when they are first used (PEP 562), so `import echelon` costs nothing and never
pulls in torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

from echelon._version import __version__

if TYPE_CHECKING:
    from echelon.client.python.python_api import Request, request
    from echelon.client.python.run_view import Run, as_completed, runs
    from echelon.errors import EchelonError, RunFailedError, TimedOutError
    from echelon.integrations.loop import loop
    from echelon.run.saved import last_saved, saved
    from echelon.train.checkpoint import Checkpointer
    from echelon.train.checkpoint_files import Checkpoint
    from echelon.train.images.transform import ImageTransform
    from echelon.train.loading import ResumableLoader
    from echelon.train.metrics import top_k
    from echelon.train.process_group import Group, init
    from echelon.train.result import Result
    from echelon.train.sampler import ElasticIndexSampler, ElasticSampler
    from echelon.train.stopping import StopBarrier
    from echelon.train.trainer import Trainer
    from echelon.world import World, detect

__all__ = [
    "Checkpoint",
    "Checkpointer",
    "EchelonError",
    "ElasticIndexSampler",
    "ElasticSampler",
    "Group",
    "ImageTransform",
    "Request",
    "Result",
    "ResumableLoader",
    "Run",
    "RunFailedError",
    "StopBarrier",
    "TimedOutError",
    "Trainer",
    "World",
    "__version__",
    "as_completed",
    "detect",
    "init",
    "last_saved",
    "loop",
    "request",
    "runs",
    "saved",
    "top_k",
]

_HOME = {
    "Checkpoint": "echelon.train.checkpoint_files",
    "Checkpointer": "echelon.train.checkpoint",
    "EchelonError": "echelon.errors",
    "ElasticIndexSampler": "echelon.train.sampler",
    "ElasticSampler": "echelon.train.sampler",
    "Group": "echelon.train.process_group",
    "ImageTransform": "echelon.train.images.transform",
    "Request": "echelon.client.python.python_api",
    "ResumableLoader": "echelon.train.loading",
    "Result": "echelon.train.result",
    "Run": "echelon.client.python.run_view",
    "RunFailedError": "echelon.errors",
    "StopBarrier": "echelon.train.stopping",
    "TimedOutError": "echelon.errors",
    "Trainer": "echelon.train.trainer",
    "World": "echelon.world",
    "as_completed": "echelon.client.python.run_view",
    "detect": "echelon.world",
    "init": "echelon.train.process_group",
    "last_saved": "echelon.run.saved",
    "loop": "echelon.integrations.loop",
    "request": "echelon.client.python.python_api",
    "runs": "echelon.client.python.run_view",
    "saved": "echelon.run.saved",
    "top_k": "echelon.train.metrics",
}

_RENAMED = {"StopLine": "StopBarrier"}
"""Old names, which work for one more release."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warn(f"echelon.{name} is now echelon.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name in _HOME:
        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from echelon.core.extras import install_command  # noqa: PLC0415

            raise ModuleNotFoundError(
                f"echelon.{name} needs torch: {install_command('train')}", name="torch"
            ) from error
    raise AttributeError(f"module 'echelon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
