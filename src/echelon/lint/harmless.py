"""Whether a job only starts Python scripts that lint has read, or only brings files."""

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
_INSTALLS = (
    r"(?P<pip>(?:python[\d.]* -m |uv )?pip[\d.]* (?:-\S+ )*(?:install|download)\b)|"
    r"(?P<env>(?:conda|mamba|micromamba) env (?:create|update)\b)|"
    r"(?:conda|mamba|micromamba) (?:-\S+ )*(?:create|install|update)\b|"
    r"uv (?:-\S+ )*(?:sync|venv|add|tool install)\b|"
    r"(?:poetry|pipenv) (?:-\S+ )*(?:install|sync|update|add)\b|"
    r"python[\d.]* -m (?:venv|virtualenv|ensurepip)\b|virtualenv\b"
)
INSTALLS = pattern(_INSTALLS)
"""The start of a command, as in `start_of`, that installs packages."""
_BRINGS = pattern(
    rf"{_INSTALLS}|git (?:lfs )?(?:clone|pull)\b|"
    r"(?:wget|curl|gdown|tar|unzip|rsync|scp|aws s3 (?:cp|sync)|gsutil)\b|"
    r"(?:hf|huggingface-cli) download\b|(?:apptainer|singularity) (?:pull|build)\b"
)
_STARTS_OTHERS = pattern(r"(?:conda|mamba|micromamba) run\b|wandb (?:agent|launch)\b")
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
    if any(command.name == "sleep" for command in shell.commands):
        return False  # it may keep the GPUs for someone
    others = [command for command in shell.commands if not _BRINGS.match(start_of(command))]
    return len(others) < len(shell.commands) and all(map(is_harmless, others))


def start_of(command: Command) -> str:
    """Return the name of the program and its first arguments."""
    return " ".join((command.name, *(word.text for word in command.arguments[:3])))


def is_harmless(command: Command) -> bool:
    if _STARTS_OTHERS.match(start_of(command)) or (
        command.name == "find" and "-exec" in command.text
    ):
        return False
    if command.name in _HARMLESS or not command.words or _ASKS.fullmatch(command.text):
        return True
    words = [word.text for word in command.words]
    asks = command.name.startswith("python") and words[1:2] == ["-c"]
    return asks and bool(_CHECKS.search(command.text)) and not _WORKS.search(command.text)
