"""tools/setup.sh on machines that are not like this one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "setup.sh"


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
    script.write_text(SETUP.read_text().replace("/usr/sbin:/sbin", str(path)))
    return subprocess.run(
        ["bash", str(script), "system"],
        env={"PATH": str(path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_may_not_be_installed_is_named_with_the_line_that_installs_it(bare):
    done = run(bare)
    assert done.returncode == 0
    said, hint = done.stderr.splitlines()
    assert "missing: slurmctld slurmd slurm-client munge slurmdbd" in said
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert hint.startswith(f"hint: {sudo}apt-get install --no-install-recommends slurmctld")
    assert hint.endswith(" chromium")


def test_in_ci_nothing_may_be_missing(bare):
    done = run(bare, CI="true")
    assert done.returncode == 1
    assert "CI=true" in done.stderr


def test_when_all_is_there_it_says_nothing(bare):
    programs = "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb ip nsenter chromium"
    for program in programs.split():
        (bare / program).write_text("#!/bin/sh\n")
        (bare / program).chmod(0o755)
    done = run(bare, CI="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_package_of_another_name_does_not_hold_up_the_others(bare):
    """apt-get installs all or nothing; one at a time the others go through."""
    for program in ("mktemp", "rm", "tail", "touch", "chmod", "sh", "true"):
        (bare / program).symlink_to(shutil.which(program))
    (bare / "apt-get").write_text(
        "#!/bin/sh\n"
        'case "$*" in *chromium*) exit 100;; esac\n'
        f"for p; do touch {bare}/$p; chmod +x {bare}/$p; done\n"
        f"touch {bare}/sbatch {bare}/munged; chmod +x {bare}/sbatch {bare}/munged\n"
    )
    (bare / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    for program in ("apt-get", "sudo"):
        (bare / program).chmod(0o755)
    done = run(bare)
    assert (bare / "slurmctld").exists()
    assert "chromium" in done.stderr.splitlines()[-1]
    assert "slurmctld" not in done.stderr.splitlines()[-1]


def test_missing_packages_are_installed_where_that_is_allowed(bare):
    """A stand-in for apt-get that puts the programs where they are looked for."""
    for program in ("mktemp", "rm", "tail", "touch", "chmod"):
        (bare / program).symlink_to(shutil.which(program))
    log = bare / "apt.log"
    programs = "slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb ip nsenter chromium"
    install = f"for p in {programs}; do touch {bare}/$p; chmod +x {bare}/$p; done"
    (bare / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {log}\n{install}\n')
    (bare / "apt-get").chmod(0o755)
    (bare / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (bare / "sudo").chmod(0o755)
    (bare / "sh").symlink_to(shutil.which("sh"))
    (bare / "true").symlink_to(shutil.which("true"))
    assert run(bare, CI="true").returncode == 0
    assert log.read_text().startswith("install -y --no-install-recommends slurmctld slurmd")
