"""E410: CPUs that neither a program nor its data loaders use."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.facts import is_alone, spawns
from echelon.lint.files import Place
from echelon.lint.harmless import runs_only_scripts
from echelon.lint.imported import read_imported
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit, Rule
from echelon.lint.subject import Started, Subject
from echelon.lint.workers import known_workers

_PARALLEL = pattern(
    r"multiprocessing|joblib|concurrent\.|\bdask\b|\bray\b|n_jobs|num_threads|_THREADS\b|num_proc|"
    r"n_?threads?\b|threading|Thread|Pool\(|Executor|subprocess|os\.system|popen|asyncio|mpi4py|"
    r"\bspawn|os\.fork|cpu_count|sched_|(?<!-)\bworkers\s*=|Loader\((?<!DataLoader\()|load_dataset|"
    r"(?:from|import) datasets\b|TrainingArguments|offload|vllm|deepspeed|tensorflow|\bjax\b|"
    r"sklearn(?!\.(?:metrics|preprocessing)\b)|scipy|faiss|numba|numexpr|polars|pyarrow|xgboost|"
    r"lightgbm|catboost|\bcv2\b|albumentations|skimage|monai|\bdali\b|ffcv|webdataset|decord|\bav\b|"
    r"librosa|rdkit|openmm|umap|hnsw|gensim|spacy|statsmodels|optuna|scanpy|pymatgen|mujoco|"
    r"simulat|\bgym|VecEnv|VectorEnv|vectorize|\benv\."
)
"""Text of scripts that may use several CPUs."""
_BY_CPU = ("mem-per-cpu", "exclusive", "ntasks-per-core", "threads-per-core", "hint")
"""Options with which CPUs may be requested for something else."""
_MEMORY = ("mem", "mem-per-gpu")
"""Without them, the memory of a job may depend on its CPUs."""
_FEWEST = 8
_TIMES = 2


def find_idle_cpus(subject: Subject) -> Iterator[Hit]:
    """Find a process with many more CPUs than it and its data loader workers use."""
    given, amounts = subject.directives.last("cpus-per-task"), subject.job
    cpus = amounts.cpus_per_task or 0
    if given is None or cpus < _FEWEST or not amounts.gpus_per_node or amounts.several_tasks:
        return
    if any(map(subject.directives.last, _BY_CPU)) or not any(map(subject.directives.last, _MEMORY)):
        return
    if not runs_only_scripts(subject):
        return
    if any(_PARALLEL.search(shell.text) for shell in subject.shells):
        return
    workers = [_workers(subject, one) for one in subject.started]
    known = [count for count in workers if count is not None]
    if len(known) < len(workers) or _TIMES * (max(known) + 1) > cpus:
        return
    most = max(known)
    beside = f"and {counted(most, 'data loader worker')}" if most else "without data loader workers"
    yield Hit(
        at=Place(subject.path, given.line),
        what=f"The job has {cpus} CPUs for one process {beside}. Most of the CPUs are idle.",
        fix=f"#SBATCH --cpus-per-task={max(2, most + 1)}  # or num_workers={cpus - 1}",
    )


def _workers(subject: Subject, one: Started) -> int | None:
    """Return the number of workers of a launch; None if it may use CPUs in another way."""
    launch, python = one.launch, one.python
    if python is None or launch.launcher or launch.mpi or launch.elsewhere or spawns(python):
        return None
    if not is_alone(subject, launch) or "cpus-per-task" in (launch.srun or {}):
        return None
    found = read_imported(subject, python)
    if found is None or any(map(_PARALLEL.search, found.codes)):
        return None
    if any("DataLoader(" in text for text in found.texts[1:]):
        return None
    return known_workers(subject, one)


RULES = (
    Rule(
        code="E410",
        title="idle CPUs",
        severity=ADVICE,
        check=find_idle_cpus,
        why="A process that trains on a GPU uses one CPU, and each data loader worker another. "
        "Without `num_workers`, the process loads the data itself, and the GPU waits for it.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=1
 #SBATCH --mem=64G
 #SBATCH --cpus-per-task=16    # <- here
 python train.py
 --- train.py
 from torch.utils.data import DataLoader
 data = list(range(100))
-for batch in DataLoader(data):
+for batch in DataLoader(data, num_workers=15):
     print(batch)
""",
    ),
)
