"""tools/setup.sh, with stand-ins for Python, pip and apt-get."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "setup.sh"
PROGRAMS = (
    "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb ip nsenter sshd ssh podman runc "
    "skopeo docker-registry chromium"
)

# --- .venv and its layers -------------------------------------------------------------------

PIP_OUTPUT = """\
Collecting torch>=2.6
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (31 kB)
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (191.8 MB)
Processing /home/me/wheels/tree_sitter-0.26.0-cp311-abi3-linux_x86_64.whl (from echelon==0.1.0)
Installing collected packages: torch, tree-sitter
Successfully installed torch-2.13.0 tree-sitter-0.26.0
"""

PYTHON = r"""#!/bin/sh
# Notes its calls in calls.log. Environments that it creates have a copy of it.
case "$1 $2" in
    "--version ") echo "Python 3.11.7" ;;
    "-m venv") echo venv >>calls.log; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip") echo "$@" >>calls.log; cat pip-output.txt; [ ! -e pip-fails ] ;;
    "-m compileall") echo compileall >>calls.log ;;
esac
"""


class Checkout:
    """A directory with what setup.sh reads, and a stand-in for Python and pip."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "tools").mkdir()
        shutil.copy(SETUP, folder / "tools")
        (folder / "pyproject.toml").write_text("[project]\n# --- ruff ---\nline-length = 100\n")
        (folder / "constraints.txt").write_text("torch==2.13.0\n")
        (folder / "pip-output.txt").write_text(PIP_OUTPUT)
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)

    def setup(self, *parts):
        """Run setup.sh. Returns what it printed, and what it asked for: the ends of pip's calls."""
        (self.folder / "calls.log").write_text("")
        done = subprocess.run(
            ["bash", "tools/setup.sh", *parts],
            cwd=self.folder,
            env=os.environ | {"PYTHON": str(self.folder / "python")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        calls = (self.folder / "calls.log").read_text().splitlines()
        return done, [call.partition("-c constraints.txt ")[2] or call for call in calls]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


USER = ["setuptools", "--editable .[train,data,dash,lint]"]


def test_a_first_setup_installs_echelon_with_torch_and_nothing_for_development(checkout):
    done, calls = checkout.setup("user")
    assert done.returncode == 0
    assert calls == ["venv", *USER]


def test_progress_has_a_line_with_the_time_for_each_stage_and_package(checkout):
    done, _ = checkout.setup("user")
    lines = done.stderr.splitlines()
    assert all(re.match(r"setup: +\d+ s  \S|setup: +\d+ s    \S", line) for line in lines)
    said = [re.sub(r"^setup: +\d+ s +", "", line) for line in lines]
    assert said[0] == "creating .venv with Python 3.11.7"
    assert said[1].startswith("installing layer 'user' into .venv")
    packages = ["torch 2.13.0 (191.8 MB)", "tree_sitter 0.26.0", "unpacking packages: 2"]
    assert said[2:] == [*packages, *packages, ".venv is ready"]


def test_a_second_setup_does_nothing_and_prints_nothing(checkout):
    checkout.setup("user")
    done, calls = checkout.setup("user")
    assert (done.returncode, done.stdout, done.stderr, calls) == (0, "", "", [])


def test_a_layer_is_added_to_those_that_are_installed(checkout):
    checkout.setup("user")
    assert checkout.setup("user", "check")[1] == ["pip", "setuptools", "--group check"]
    assert checkout.setup("user", "test")[1] == [
        *("pip", "setuptools", "--editable .[ray,tensorboard] --group test"),
        "compileall",
    ]
    assert checkout.setup("user", "check", "test")[1] == []


@pytest.mark.parametrize(
    ("file", "text"),
    [("constraints.txt", "torch==2.14.0\n"), ("pyproject.toml", "[project]\ndependencies = []\n")],
)
def test_changed_requirements_are_installed_into_the_same_environment(checkout, file, text):
    checkout.setup("user")
    (checkout.folder / file).write_text(text)
    assert checkout.setup("user")[1] == USER


def test_settings_of_development_tools_install_nothing(checkout):
    checkout.setup("user")
    (checkout.folder / "pyproject.toml").write_text("[project]\n# --- ruff ---\nline-length = 99\n")
    assert checkout.setup("user")[1] == []


def test_a_checkout_that_was_moved_gets_a_new_environment(checkout, tmp_path):
    checkout.setup("user")
    (tmp_path / ".venv" / "made-for").write_text("/elsewhere \n")
    assert checkout.setup("user")[1] == ["venv", *USER]


def test_when_pip_fails_its_last_lines_are_shown_and_the_next_setup_tries_again(checkout):
    (checkout.folder / "pip-fails").touch()
    (checkout.folder / "pip-output.txt").write_text("ERROR: No matching distribution for torch\n")
    done, _ = checkout.setup("user")
    assert done.returncode == 1
    assert "ERROR: No matching distribution for torch\n" in done.stderr
    assert done.stderr.endswith("hint: the full output is in .venv/pip.log\n")
    (checkout.folder / "pip-fails").unlink()
    done, calls = checkout.setup("user")
    assert (done.returncode, calls) == (0, USER)


def test_an_unknown_part_is_refused_with_the_parts_that_exist(checkout):
    done, calls = checkout.setup("everything")
    assert (done.returncode, calls) == (1, [])
    assert "unknown part 'everything'" in done.stderr
    assert "hint: tools/setup.sh user [check] [docs] [test] | peers | system" in done.stderr
    done, calls = checkout.setup("user", "everything")
    assert (done.returncode, calls) == (1, [])
    assert "unknown part 'everything'" in done.stderr


# --- system packages ------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path):
    """A PATH with a handful of programs, and no package manager."""
    for program in ("bash", "dirname", "id", "cat", "env"):
        (tmp_path / program).symlink_to(shutil.which(program))
    return tmp_path


def run(path, **variables):
    # /usr/sbin, where the script also looks, is hidden by looking from a copy.
    script = path / "tools" / "setup.sh"
    script.parent.mkdir(exist_ok=True)
    text = SETUP.read_text().replace("/usr/sbin:/sbin", str(path))
    script.write_text(text.replace("/usr/sbin/policy-rc.d", str(path / "policy-rc.d")))
    return subprocess.run(
        ["bash", str(script), "system"],
        env={"PATH": str(path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_permission_to_install_the_missing_packages_and_the_command_are_named(bare):
    done = run(bare)
    assert done.returncode == 0
    said, hint = done.stderr.splitlines()
    assert "missing: slurmctld slurmd slurm-client munge slurmdbd" in said
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert hint.startswith(f"hint: {sudo}apt-get install --no-install-recommends slurmctld")
    assert hint.endswith(" chromium")


def test_in_ci_a_missing_package_is_an_error(bare):
    done = run(bare, CI="true")
    assert done.returncode == 1
    assert "CI=true" in done.stderr


def test_when_all_packages_are_installed_nothing_is_printed(bare):
    for program in PROGRAMS.split():
        (bare / program).write_text("#!/bin/sh\n")
        (bare / program).chmod(0o755)
    done = run(bare, CI="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def apt(bare):
    """Installs a stand-in for apt-get with the given lines, which may use $path."""
    for program in ("mktemp", "rm", "tail", "tee", "touch", "chmod", "sh", "true"):
        (bare / program).symlink_to(shutil.which(program))
    (bare / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (bare / "sudo").chmod(0o755)

    def install(*lines):
        (bare / "apt-get").write_text("\n".join(["#!/bin/sh", f"path={bare}", *lines, ""]))
        (bare / "apt-get").chmod(0o755)

    return install


def test_a_package_that_does_not_exist_does_not_keep_the_others_from_being_installed(bare, apt):
    """apt-get installs all or nothing; one at a time the others go through."""
    apt(
        'case "$*" in *chromium*) exit 100;; esac',
        "for p; do touch $path/$p; chmod +x $path/$p; done",
        "touch $path/sbatch $path/munged; chmod +x $path/sbatch $path/munged",
    )
    done = run(bare)
    assert (bare / "slurmctld").exists()
    assert "chromium" in done.stderr.splitlines()[-1]
    assert "slurmctld" not in done.stderr.splitlines()[-1]


def test_the_service_of_openssh_server_is_not_started(bare, apt):
    """While apt-get runs, Debian's policy denies it, and no other service."""
    apt(
        "for service in ssh ssh.socket munge; do",
        "    $path/policy-rc.d $service start; echo $service $? >> $path/policy.log",
        "done",
        f"for p in {PROGRAMS}; do touch $path/$p; chmod +x $path/$p; done",
    )
    assert run(bare, CI="true").returncode == 0
    assert (bare / "policy.log").read_text() == "ssh 101\nssh.socket 101\nmunge 0\n"
    assert not (bare / "policy-rc.d").exists()


def test_a_policy_of_the_machine_is_left_alone(bare, apt):
    (bare / "policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    apt(f"for p in {PROGRAMS}; do touch $path/$p; chmod +x $path/$p; done")
    assert run(bare, CI="true").returncode == 0
    assert (bare / "policy-rc.d").read_text() == "#!/bin/sh\nexit 101\n"


def test_missing_packages_are_installed_where_that_is_allowed(bare, apt):
    apt(
        'echo "$@" >> $path/apt.log',
        f"for p in {PROGRAMS}; do touch $path/$p; chmod +x $path/$p; done",
    )
    assert run(bare, CI="true").returncode == 0
    log = (bare / "apt.log").read_text()
    assert log.startswith("install -y --no-install-recommends slurmctld slurmd")
