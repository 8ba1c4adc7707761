"""From an empty folder to a job, by two commands."""

import subprocess
import sys
import tomllib

TRAIN = """\
import os
# Stands in for a script that imports torch.
if __name__ == "__main__":
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""


def test_a_project_file_from_init_can_be_submitted(cluster, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {
        **cluster.environ,
        "SLURM_CONF": str(cluster.box.layout.slurm_conf),
        "HOME": str(tmp_path),
        "VIRTUAL_ENV": "",
    }

    def echelon(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *arguments],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    assert "  echelon submit --follow" in echelon("init").stderr
    found = tomllib.loads((tmp_path / "echelon.toml").read_text())
    assert found == {"script": "train.py", "gpus": 4, "cpus_per_task": 4}
    shown = echelon("submit", "--follow").stdout.splitlines()
    assert sorted(shown[1:]) == [f"{rank}: rank {rank} of 4" for rank in range(4)]
