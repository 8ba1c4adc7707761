"""What an interruption costs public training scripts that know nothing of Echelon.

    .venv/bin/python benchmarks/unmodified.py CHECKOUTS [--scripts NAME,…] [--at-once N]

CHECKOUTS holds one checkout per repository, named like it: CHECKOUTS/nanoGPT. Each script runs
with two ranks, under torchrun and under `echelon run`, on small data (toys.py). Interruptions:
rank 1 is killed; the launcher gets Ctrl-C; rank 1 is killed and restarts are allowed. Scripts are
not changed, only given arguments. Ten run on the CPU with gloo. The ranks of nanoGPT, multinode,
timm and open_clip share one GPU, as two nodes; multinode and timm use NCCL, and for that need 2.30
or newer, or --preload. What a script imports has to be installed. The one with JAX is in this
repository: CHECKOUTS/echelon is a link to it.
Writes benchmarks/results/unmodified.json.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import toys
from measuring import ECHELON, RESULTS, TORCHRUN, describe_machine, environ, workshop

from echelon.core.waiting import wait_until

START_S = 120.0
"""Until a script has saved a checkpoint and made a few more steps."""
GIVEN_UP_S = 60.0
"""Until a launcher has ended after an interruption, or its ranks have stepped again."""
LEFT_S = 2.0
"""Processes that still exist this long after the launcher's end count as left."""
MORE_STEPS = 5
"""Steps between the last checkpoint and the interruption, at least."""
PACKAGES = ("torch", "torchvision", "lightning", "transformers", "accelerate", "diffusers", "timm")
PACKAGES += ("trl", "datasets", "deepspeed", "jax")
INTERRUPTIONS = {"killed": 0, "ctrl-c": 0, "killed, restarts": 3}
"""What is done → the number of restarts allowed."""
LAUNCHERS = ("torchrun", "echelon")
OWN = {
    "echelon": r"^(?!\d+: )",
    "torchrun": r"torch/distributed/(elastic|run)|(rank|exitcode|traceback) +:|Signal",
}
"""Lines that a launcher wrote itself."""
NAMED = {
    "echelon": r"rank 1 on \S+: killed by SIGKILL",
    "torchrun": r"exitcode: -9\) local_rank: \d|rank +: 1 \(",
}
"""Lines that name the rank that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A public training script, and how to read its progress."""

    name: str
    repository: str
    commit: str
    folder: str = "."
    """Folder of the checkout that is copied for each trial; the script runs in it."""
    file: str
    """Script in that folder, or a module if the name has no suffix."""
    arguments: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    step: str
    """Regular expression; the numbers of its groups, weighted, add up to a step. If the script
    prints no steps, it is empty, and the steps of checkpoints count instead."""
    weights: tuple[float, ...] = (1,)
    unit: str = "steps"
    checkpoint: str = ""
    """Pattern for the files of its checkpoints; empty if it writes none before its end."""
    saved: str = ""
    """Regular expression for the step in the name of a checkpoint; empty if it has none."""
    toys: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    """Path in the copy → what writes the data there."""
    nodes: int = 1
    """2 if its ranks share a GPU: each is the first rank of a simulated node."""


# --- scripts ------------------------------------------------------------------------------------

_EXAMPLES = {
    "repository": "pytorch/examples",
    "commit": "77f55b912142e11fcfdf5b530231fb9c52f181e8",
}
_LIGHTNING = {
    "repository": "Lightning-AI/pytorch-lightning",
    "commit": "7f0c3436cd3f6ad3753125672024fc415cbcb414",
}
_GRPO = (
    "--num_generations 2 --max_completion_length 8 --save_steps 10 "
    "--reward_funcs get_soft_overlong_punishment"
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}

SCRIPTS = (
    Script(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        commit="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        file="train.py",
        arguments=(
            "--dataset=toy --backend=gloo --compile=False --eval_interval=50 --eval_iters=2 "
            "--gradient_accumulation_steps=2 --batch_size=4 --block_size=64 --n_layer=2 "
            "--n_head=2 --n_embd=64 --max_iters=100000"
        ),
        step=r"\biter (\d+): loss",
        checkpoint="out/ckpt.pt",
        toys={"data/toy": toys.write_tokens},
        nodes=2,
    ),
    Script(
        **_EXAMPLES,
        name="mnist",
        folder="mnist",
        file="main.py",
        arguments="--no-accel --log-interval 1 --epochs 1000",
        step=r"Train Epoch: (\d+) \[(\d+)/",
        weights=(32, 1 / 64),
        toys={"data": toys.write_digits},
    ),
    Script(
        **_EXAMPLES,
        name="imagenet",
        folder="imagenet",
        file="main.py",
        arguments=(
            "--no-accel --dist-backend gloo --dist-url env:// -a shufflenet_v2_x0_5 -b 4 -j 0 -p 1 "
            "--epochs 1000 --resume checkpoint.pth.tar ../toy"
        ),
        step=r"Epoch: \[(\d+)\]\[ *(\d+)/",
        weights=(20, 1),
        checkpoint="checkpoint.pth.tar",
        toys={"toy": toys.write_images},
    ),
    Script(
        **_EXAMPLES,
        name="multinode",
        folder="distributed/ddp-tutorial-series",
        file="multinode.py",
        arguments="1000000 20",
        step=r"GPU0\] Epoch (\d+) \|",
        unit="epochs",
        checkpoint="snapshot.pt",
        nodes=2,
    ),
    Script(
        **_LIGHTNING,
        name="autoencoder",
        folder="examples/pytorch/basics",
        file="autoencoder.py",
        arguments=(
            "--trainer.accelerator=cpu --trainer.devices=2 --trainer.strategy=ddp "
            "--trainer.max_epochs=1000 --trainer.limit_train_batches=50 "
            "--trainer.limit_val_batches=2 --trainer.callbacks+=TQDMProgressBar"
        ),
        environ={"PL_USE_MOCKED_MNIST": "1"},
        step=r"Epoch (\d+): .* ([1-9]\d*)/50 ",
        weights=(50, 1),
        checkpoint="lightning_logs/version_*/checkpoints/*.ckpt",
        saved=r"step=(\d+)",
        toys={"examples/Datasets": toys.write_lightning_digits},
    ),
    Script(
        **_LIGHTNING,
        name="image_classifier",
        folder="examples/fabric/image_classifier",
        file="train_fabric.py",
        arguments="--log-interval 1 --epochs 1000",
        environ={"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_DEVICES": "2"}
        | {"LT_STRATEGY": "ddp", "LT_NUM_NODES": "1"},
        step=r"Train Epoch: (\d+) \[(\d+)/",
        weights=(16, 1 / 64),
        toys={"Datasets": toys.write_digits},
    ),
    Script(
        name="run_clm",
        repository="huggingface/transformers",
        commit="d56c55bf564ddb176759eb6ec199442682564916",
        folder="examples/pytorch/language-modeling",
        file="run_clm.py",
        arguments=(
            "--config_name ../../../toy/model --tokenizer_name ../../../toy/model "
            "--train_file ../../../toy/text.txt --do_train --use_cpu --block_size 32 "
            "--per_device_train_batch_size 4 --max_steps 100000 --save_steps 50 "
            "--logging_steps 1 --output_dir out --report_to none"
        ),
        environ=_OFFLINE,
        step=r"\b([1-9]\d*)/100000 \[",
        checkpoint="out/checkpoint-*/trainer_state.json",
        saved=r"checkpoint-(\d+)",
        toys={"toy/model": toys.write_tokenizer, "toy/text.txt": toys.write_text},
    ),
    Script(
        name="train_unconditional",
        repository="huggingface/diffusers",
        commit="58eb52c0803ea9af3abec60841c2a093bdf1f951",
        folder="examples/unconditional_image_generation",
        file="train_unconditional.py",
        arguments=(
            "--train_data_dir ../../toy/images/train --model_config_name_or_path ../../toy/unet "
            "--resolution 16 --train_batch_size 2 --num_epochs 1000 --save_images_epochs 1000000 "
            "--save_model_epochs 1000000 --checkpointing_steps 50 --output_dir out "
            "--resume_from_checkpoint latest"
        ),
        environ=_OFFLINE,
        step=r"step=(\d+)",
        checkpoint="out/checkpoint-*/random_states_0.pkl",
        saved=r"checkpoint-(\d+)",
        toys={"toy/images": toys.write_images, "toy/unet": toys.write_unet},
    ),
    Script(
        name="timm",
        repository="huggingface/pytorch-image-models",
        commit="aa4b5850c1543fa488abf260f18390eda46cf85d",
        file="train.py",
        arguments=(
            "--data-dir toy --model test_vit --num-classes 2 --batch-size 4 --workers 1 "
            "--no-prefetcher --epochs 1000 --log-interval 1 --experiment run"
        ),
        step=r"Train: (\d+) \[ *(\d+)/",
        weights=(20, 1),
        checkpoint="output/train/run*/last.pth.tar",
        toys={"toy": toys.write_images},
        nodes=2,
    ),
    Script(
        name="open_clip",
        repository="mlfoundations/open_clip",
        commit="89fb801f1e6087880e951fc8354b8a2077b79c6d",
        folder="src",
        file="open_clip_train.main",
        arguments=(
            "--dataset-type synthetic --train-num-samples 320 --batch-size 8 --workers 0 "
            "--model local-dir:../toy --dist-backend gloo --precision fp32 --epochs 1000 "
            "--name run --resume latest --log-every-n-steps 1"
        ),
        step=r"Train Epoch: (\d+) \[ *(\d+)/",
        weights=(20, 1 / 16),
        checkpoint="logs/run/checkpoints/epoch_*.pt",
        toys={"toy": toys.write_clip},
        nodes=2,
    ),
    *(
        Script(
            name=name,
            repository="huggingface/trl",
            commit="f2cd57710ae345ea6428ae95363267fcf38a3dc8",
            folder="trl/scripts",
            file=f"{name}.py",
            arguments=(
                f"--model_name_or_path ../../toy/model --dataset_name ../../toy/data/{data} "
                "--output_dir out --max_steps 100000 --logging_steps 1 --use_cpu --report_to none "
                f"--dtype float32 --per_device_train_batch_size 4 {arguments}"
            ),
            environ=_OFFLINE,
            step=r"\b([1-9]\d*)/100000 \[",
            checkpoint="out/checkpoint-*/trainer_state.json",
            saved=r"checkpoint-(\d+)",
            toys={"toy/model": toys.write_llama, "toy/data": toys.write_texts},
        )
        for name, data, arguments in (
            ("sft", "text", "--save_steps 50"),
            ("grpo", "prompt", _GRPO),
        )
    ),
    Script(
        name="complete_nlp_example",
        repository="huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        folder="examples",
        file="complete_nlp_example.py",
        arguments="--cpu --checkpointing_steps 10",
        environ=_OFFLINE,
        step="",
        checkpoint="step_*/random_states_1.pkl",
        saved=r"step_(\d+)",
        toys={
            "examples/bert-base-cased": toys.write_bert,
            "examples/nyu-mll/glue": toys.write_pairs,
            "examples/glue": toys.write_metric,
        },
    ),
    Script(
        name="cifar10_deepspeed",
        repository="deepspeedai/DeepSpeedExamples",
        commit="45b4b7156c8794a3452a5a7d03dbd8d797068569",
        folder="training/cifar",
        file="cifar10_deepspeed.py",
        arguments="--deepspeed --dtype fp32 --log-interval 1 --epochs 1000",
        environ={"DS_ACCELERATOR": "cpu", "PYTHONPATH": "../../toy"},
        step=r"\[ *(\d+), +(\d+)\] loss",
        weights=(625, 1),
        toys={"training/cifar/data": toys.write_cifar, "toy": toys.write_unchecked},
    ),
    Script(  # public programs with JAX start their ranks by other means than torchrun's variables
        name="alone_jax",
        repository="echelon",
        commit="",
        folder="tests/slurm/frameworks",
        file="alone_jax.py",
        arguments="100000 0.05 50",
        environ={"JAX_PLATFORMS": "cpu"},
        step=r"\bstep (\d+)",
        checkpoint="checkpoint.npz",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a trial does."""

    script: Script
    launcher: str
    interruption: str
    checkouts: Path
    preload: str
    """A libnccl.so.2 that lets ranks share a GPU, or nothing."""

    @property
    def restarts(self):
        return INTERRUPTIONS[self.interruption]


# --- a trial ------------------------------------------------------------------------------------


class Trial:
    """A script under a launcher: its output with times, its checkpoints, its processes."""

    def __init__(self, plan, place):
        self.plan, self.script, self.launcher = plan, plan.script, plan.launcher
        script = self.script
        self._variables = environ(
            UNMODIFIED_TRIAL=str(place),
            PYTHONUNBUFFERED="1",
            TQDM_MININTERVAL="0",
            OMP_NUM_THREADS="2",
            HF_HOME=str(place / "cache"),
            **script.environ,
        )
        if script.nodes == 1:
            self._variables["CUDA_VISIBLE_DEVICES"] = ""
        elif plan.preload:
            self._variables |= {"LD_PRELOAD": plan.preload, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        copy = place / "code"
        source = plan.checkouts / script.repository.rpartition("/")[2] / script.folder
        shutil.copytree(source, copy / script.folder)
        self.folder = copy / script.folder
        for path, write in script.toys.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            write(copy / path)
        self.lines = []
        """Time and text of each line; progress bars end theirs with a carriage return."""
        self.steps = []
        """Time and number of each step read from the output."""
        self._readers = []
        self.launchers = []
        for argv in self._commands(plan.restarts):
            self._start(argv)
        if self.launcher == "echelon":
            # `echelon run` skips states of a progress bar; the log of the rank has them all.
            self._start_reader(self._follow)
        if not self.script.step:
            self._start_reader(self._follow_checkpoints)

    def _commands(self, restarts):
        nodes, file = self.script.nodes, self.script.file
        module = [] if file.endswith(".py") else ["-m"]
        script = [file, *self.script.arguments.split()]
        procs = 2 // nodes
        if self.launcher == "echelon":
            allowed = ["--restarts", str(restarts)] if restarts else []
            sizes = ["--nodes", str(nodes)] if nodes > 1 else []
            yield [*ECHELON, "run", *sizes, "--procs", str(procs), *allowed, *module, *script]
            return
        allowed = [f"--max-restarts={restarts}"] if restarts else []
        meet = ["--standalone"]
        if nodes > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
            meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=trial"]
            meet.append(f"--nnodes={nodes}")
        for _ in range(nodes):
            yield [*TORCHRUN, *meet, f"--nproc-per-node={procs}", *allowed, *module, *script]

    def _start(self, argv):
        # All launchers are one process group, as in a terminal.
        group = self.launchers[0].pid if self.launchers else 0
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=group,
        )
        self.launchers.append(process)
        self._start_reader(self._read, process.stdout)

    def _start_reader(self, read, *arguments):
        reader = threading.Thread(target=read, args=arguments, daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, pipe):
        rest = b""
        while got := os.read(pipe.fileno(), 65536):
            *whole, rest = re.split(rb"[\r\n]+", rest + got)
            for line in whole:
                self.lines.append((time.monotonic(), line.decode(errors="replace")))
                if self.launcher != "echelon":
                    self._note(line)

    def _follow(self):
        """Read the logs of rank 0, one per generation, until the launcher has ended."""
        read = {}
        while not self.ended():
            for path in sorted(self.folder.glob("runs/*/logs/*/rank-00000.log")):
                with path.open("rb") as log:
                    log.seek(read.get(path, 0))
                    *whole, _ = re.split(rb"(?<=[\r\n])", log.read())
                for line in whole:
                    self._note(line)
                read[path] = read.get(path, 0) + sum(map(len, whole))
            time.sleep(0.01)

    def _follow_checkpoints(self):
        """Note the step of each checkpoint when it is written, until the launcher has ended."""
        known = {}
        while not self.ended():
            now = self.checkpoints()
            fresh = [path for path, when in now.items() if known.get(path) != when]
            numbers = (re.search(self.script.saved, path) for path in fresh)
            for number in sorted(int(found[1]) for found in numbers):
                self.steps.append((time.monotonic(), number))
            known = now
            time.sleep(0.01)

    def _note(self, line):
        if not self.script.step:
            return
        if found := re.search(self.script.step, line.decode(errors="replace")):
            groups = zip(found.groups(), self.script.weights, strict=True)
            number = sum(float(value) * weight for value, weight in groups)
            self.steps.append((time.monotonic(), round(number)))

    # --- what is seen ---------------------------------------------------------------------------

    def checkpoints(self):
        """Return the time of the last change of each checkpoint."""
        found = {}
        if self.script.checkpoint:
            for path in self.folder.glob(self.script.checkpoint):
                with suppress(FileNotFoundError):  # replaced or removed meanwhile
                    found[str(path.relative_to(self.folder))] = path.stat().st_mtime_ns
        return found

    def processes(self):
        """Return the environment and parent of each process of this trial."""
        mark, found = self._variables["UNMODIFIED_TRIAL"], {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):  # it ended meanwhile
                pid = int(entry.name)
                raw = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(item.partition("=")[::2] for item in raw)
                if variables.get("UNMODIFIED_TRIAL") == mark:
                    words = (entry / "stat").read_text().rpartition(")")[2].split()
                    if words[0] != "Z":
                        found[pid] = (variables, int(words[1]))
        return found

    def rank_pid(self, rank):
        """Return the process of a rank in the current generation; None if there is none."""
        if self.launcher == "echelon":
            lines = [
                line
                for path in self.folder.glob("runs/*/events/controller-*.jsonl")
                for line in path.read_text().splitlines()
            ]
            events = [event for event in map(json.loads, lines) if event["kind"] == "rank"]
            return next((one["pid"] for one in reversed(events) if one["rank"] == rank), None)
        agents = {process.pid for process in self.launchers}
        for pid, (variables, parent) in self.processes().items():
            if parent in agents and variables.get("RANK") == str(rank):
                return pid
        return None

    def ended(self):
        return all(process.poll() is not None for process in self.launchers)

    # --- what is done ---------------------------------------------------------------------------

    def await_middle(self):
        """Wait until a checkpoint is a few steps old; return its step, None if none is written.

        A checkpoint of the first step does not count: resuming from it shows nothing.
        """
        seen, saved = {}, None

        def is_middle():
            nonlocal seen, saved
            assert not self.ended(), self.tail()
            if self.steps and (now := self.checkpoints()) != seen:
                names = re.findall(self.script.saved, " ".join(now)) if self.script.saved else []
                seen, saved = now, max(map(int, names), default=self.steps[-1][1])
            if not self.script.step:
                return len(self.steps) >= 2 * MORE_STEPS
            if self.script.checkpoint:
                begun = saved is not None and saved > self.steps[0][1] + 1
                return begun and self.steps[-1][1] >= saved + MORE_STEPS
            return len(self.steps) >= 2 * MORE_STEPS

        assert wait_until(is_middle, timeout_s=START_S, interval_s=0.01), self.tail()
        return saved

    def tail(self):
        return "\n".join(text for _, text in self.lines[-40:])

    def close(self):
        """Kill everything that this trial started."""

        def all_gone():
            pids = self.processes()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        assert wait_until(all_gone, timeout_s=20)
        for process in self.launchers:
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.launchers:
            process.stdout.close()


@contextmanager
def running(plan, folder):
    """Run a script during the block."""
    place = Path(tempfile.mkdtemp(dir=folder))
    trial = Trial(plan, place)
    try:
        yield trial
    finally:
        trial.close()
        shutil.rmtree(place, ignore_errors=True)


def try_once(plan, folder):
    """Interrupt a script once; return what was seen, and all output."""
    with running(plan, folder) as trial:
        saved = trial.await_middle()
        first, at = trial.steps[0][1], trial.steps[-1][1]
        before, old = trial.checkpoints(), trial.rank_pid(0)
        began = time.monotonic()
        if plan.interruption == "ctrl-c":
            os.killpg(trial.launchers[0].pid, signal.SIGINT)
        else:
            os.kill(trial.rank_pid(1), signal.SIGKILL)
        found = {"first_step": first, "at_step": at, "saved_step": saved}
        if plan.restarts:
            found |= await_restart(trial, old, before, began)
        else:
            found |= await_end(trial, began)
            found["lost_steps"] = at - (first - 1 if saved is None else saved)
        texts = [text.strip() for when, text in trial.lines if when >= began and text.strip()]
        own = [text for text in texts if re.search(OWN[plan.launcher], text)]
        found["named"] = [text for text in own if re.search(NAMED[plan.launcher], text)]
        found["said"] = own[-12:]
        return found, [text for _, text in trial.lines]


def await_end(trial, began):
    """Wait for the launcher's end; return when and how it ended, and what is left."""
    ended = wait_until(trial.ended, timeout_s=GIVEN_UP_S, interval_s=0.01)
    seconds = round(time.monotonic() - began, 2)
    if not ended:
        return {"ended": False}
    wait_until(lambda: not trial.processes(), timeout_s=LEFT_S)
    codes = [process.returncode for process in trial.launchers]
    return {"ended": True, "codes": codes, "seconds": seconds, "left": len(trial.processes())}


def await_restart(trial, old, before, began):
    """Wait for the first step of new ranks and their first checkpoint; return what they did."""

    def started():
        return trial.ended() or trial.rank_pid(0) not in (old, None)

    def stepped():
        return trial.ended() or len(trial.steps) > known

    def saved():
        return trial.checkpoints() != before

    wait_until(started, timeout_s=GIVEN_UP_S, interval_s=0.02)
    known, left_s = len(trial.steps), began + GIVEN_UP_S - time.monotonic()
    if not wait_until(stepped, timeout_s=left_s, interval_s=0.01):
        return {"went_on": False, "ended": False}
    if trial.ended():
        return {"went_on": False, **await_end(trial, began)}
    first, at, (when, step) = trial.steps[0][1], trial.steps[known - 1][1], trial.steps[known]
    resumed = step > first + 1
    if before and not resumed:
        wait_until(saved, timeout_s=GIVEN_UP_S)
    after = trial.checkpoints()
    return {
        "went_on": True,
        "from_step": step,
        "resumed": resumed,
        "seconds": round(when - began, 2),
        "lost_steps": at - step + 1,
        "overwritten": not resumed and any(after.get(path) != before[path] for path in before),
    }


# --- results ------------------------------------------------------------------------------------


def versions():
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def check_commit(script, checkouts):
    """Complain if a checkout is at another commit than the one that was measured."""
    checkout = checkouts / script.repository.rpartition("/")[2]
    if script.commit and (checkout / ".git").exists():
        argv = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        commit = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        if commit != script.commit:
            print(f"warning: {checkout} is at {commit}, not at {script.commit}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--scripts", default=",".join(script.name for script in SCRIPTS))
    parser.add_argument("--interruptions", default="/".join(INTERRUPTIONS))
    parser.add_argument("--launchers", default=",".join(LAUNCHERS))
    parser.add_argument("--at-once", type=int, default=1, help="trials at the same time")
    parser.add_argument("--preload", default="", help="libnccl.so.2 that lets ranks share a GPU")
    parser.add_argument("--output", type=Path, default=RESULTS / "unmodified.json")
    parser.add_argument("--add", action="store_true", help="keep the trials in the output file")
    parser.add_argument("--logs", type=Path, help="file for the output of all trials")
    asked = parser.parse_args()
    wanted = [script for script in SCRIPTS if script.name in asked.scripts.split(",")]
    rows = json.loads(asked.output.read_text())["rows"] if asked.add else {}

    def conduct(plan):
        lines = []
        try:
            found, lines = try_once(plan, folder)
        except AssertionError as error:
            found = {"failed": str(error)[-3000:]}
        trials = rows.setdefault(plan.script.name, {}).setdefault(plan.interruption, {})
        trials.setdefault(plan.launcher, []).append(found)
        shown = {key: value for key, value in found.items() if key != "said"}
        print(f"{plan.script.name}, {plan.interruption}, {plan.launcher}: {shown}", flush=True)
        return [f"=== {plan.script.name}, {plan.interruption}, {plan.launcher}", *lines[-200:]]

    with workshop() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        plans = [
            Plan(
                script=script,
                launcher=launcher,
                interruption=interruption,
                checkouts=asked.checkouts.resolve(),
                preload=asked.preload,
            )
            for script in wanted
            for interruption in asked.interruptions.split("/")
            for launcher in asked.launchers.split(",")
        ]
        for script in wanted:
            check_commit(script, asked.checkouts)
        logs = [line for lines in pool.map(conduct, plans) for line in lines]
    if asked.logs:
        asked.logs.write_text("\n".join(logs) + "\n")
    described = describe_machine()
    described["versions"] |= versions()
    sources = {
        script.name: {
            "repository": script.repository,
            "commit": script.commit,
            "script": f"{script.folder}/{script.file}".removeprefix("./"),
            "arguments": script.arguments,
            "environment": dict(script.environ),
            "nodes": script.nodes,
            "unit": script.unit,
        }
        for script in SCRIPTS
        if script.name in rows
    }
    result = {**described, "at_once": asked.at_once, "sources": sources, "rows": rows}
    asked.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
