"""Whether a job does nothing but start Python scripts that lint has read."""

from echelon.lint.bash import Command
from echelon.lint.facts import sources_others
from echelon.lint.patterns import pattern
from echelon.lint.subject import Subject

_HARMLESS = frozenset(
    {
        *("echo", "printf", "cat", "ls", "pwd", "date", "hostname", "whoami", "which", "type"),
        "id",
        *("cd", "mkdir", "touch", "rm", "cp", "mv", "ln", "rsync", "chmod", "mktemp", "tee", "du"),
        *("head", "tail", "grep", "sed", "awk", "cut", "tr", "sort", "uniq", "wc", "seq", "find"),
        *("basename", "dirname", "realpath", "readlink", "nproc", "free", "df", "lscpu", "uname"),
        *("module", "ml", "source", ".", "conda", "mamba", "micromamba", "export", "unset", "set"),
        *("local", "declare", "readonly", "shift", "return", "exit", "trap", "true", "false", ":"),
        *("test", "[", "[[", "read", "sleep", "wait", "ulimit", "umask", "printenv", "shopt"),
        *("nvidia-smi", "scontrol", "squeue", "sacct", "sinfo", "seff", "git", "pip", "pip3"),
        *("wandb", "hash", "stat", "mail", "alias", "tput", "clear", "lspci"),
    }
)
"""Commands that use neither GPUs nor several CPUs."""
_BRINGS = pattern(
    r"(?:python[\d.]* -m |uv )?pip[\d.]* (?:install|download)\b|uv (?:sync|venv|add)\b|"
    r"(?:conda|mamba|micromamba) (?:env )?(?:create|install|update)\b|"
    r"python[\d.]* -m (?:venv|virtualenv)\b|virtualenv\b|git (?:lfs )?(?:clone|pull)\b|"
    r"(?:wget|curl|gdown|tar|unzip|rsync|scp|aws s3 (?:cp|sync)|gsutil)\b|"
    r"(?:hf|huggingface-cli) download\b|(?:apptainer|singularity) (?:pull|build)\b"
)
_ASKS = pattern(r"\S{1,200} (?:--version|-V|--help)|eval .{0,999}\b(?:conda|mamba)\b.{0,999}")
_CHECKS = pattern(r"is_available|device_count|get_device_name|__version__|sys\.version")
_WORKS = pattern(r"\bfor\b|\brange|@|matmul|randn|ones|zeros|rand\b")
"""Words in `python -c` that only asks what there is, or that do more."""


def runs_only_scripts(subject: Subject) -> bool:
    """Tell whether all programs of a job are Python scripts that lint has read."""
    if not subject.is_job or len(subject.shells) != 1 or not subject.started:
        return False
    shell = subject.shells[0]
    if shell.suspect or shell.too_deep or sources_others(subject):
        return False
    if any(one.python is None for one in subject.started):
        return False
    launches = {id(one.launch.command) for one in subject.started}
    functions = {command.function for command in shell.commands}
    return all(
        id(command) in launches or command.name in functions or is_harmless(command)
        for command in shell.commands
    )


def only_brings_files(subject: Subject) -> bool:
    """Tell whether a job does nothing but install packages, or download or copy files."""
    if not subject.is_job or len(subject.shells) != 1:
        return False
    shell = subject.shells[0]
    if shell.suspect or shell.too_deep or sources_others(subject):
        return False
    others = [command for command in shell.commands if not _BRINGS.match(_call(command))]
    return len(others) < len(shell.commands) and all(map(is_harmless, others))


def _call(command: Command) -> str:
    """Return the name of the program and its first arguments."""
    return " ".join((command.name, *(word.text for word in command.arguments[:3])))


def is_harmless(command: Command) -> bool:
    if command.name in ("conda", "mamba", "micromamba") and "run" in command.text.split()[1:2]:
        return False
    if command.name in _HARMLESS or not command.words or _ASKS.fullmatch(command.text):
        return True
    words = [word.text for word in command.words]
    asks = command.name.startswith("python") and words[1:2] == ["-c"]
    return asks and bool(_CHECKS.search(command.text)) and not _WORKS.search(command.text)
