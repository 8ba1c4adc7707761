"""Spellings that several rules find, and what looks like them but is fine."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import JOB, TextFiles, codes


@pytest.mark.parametrize(
    "line",
    ["run script from above", "Load your own environment here, for the model", "this is a test"],
)
def test_a_sentence_is_no_command(line):
    assert ("E212", "warning") in codes(f"{line}\npython a.py\n")


@pytest.mark.parametrize(
    "line",
    [
        "echo this is a test",
        "module load the one",
        "python a.py on the gpu",
        "train this model on cuda --fast",
        "git commit of this",
        "run() { :; }\nrun this for me",
        "cat <<E\nrun script from above\nE",
        "srun hostname",
        "make all install",
    ],
)
def test_words_that_may_be_a_command(line):
    name = line.split()[0]
    assert name in ("python", "train") or "E212" not in dict(codes(f"{line}\n"))


@pytest.mark.parametrize(
    ("head", "command", "found"),
    [
        ("#SBATCH -N 2\n", "mpirun -n 8 python a.py", True),
        ("#SBATCH -n 4\n", "mpirun -np 8 python a.py", True),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n", "mpirun -n 8 python a.py", False),
        ("#SBATCH -N 2\n", "mpirun --oversubscribe -n 8 python a.py", False),
        ("#SBATCH -N 2\n", "mpirun --hostfile hosts -n 8 python a.py", False),
        ("#SBATCH -N 2\n", "mpirun -n $N python a.py", False),
        ("#SBATCH -n 8\n", "mpirun -n 4 python a.py", False),
    ],
)
def test_processes_of_mpirun(head, command, found):
    assert ("E213" in dict(codes(f"{command}\n", f"#!/bin/bash\n{head}"))) == found


@pytest.mark.parametrize(
    ("trainer", "found"),
    [
        ("Trainer(devices=4, num_nodes=2)", False),
        ("Trainer(devices=2, num_nodes=2)", True),
        ("Trainer(devices=4)", False),
        ("Trainer(devices=4, num_nodes=1)", True),
        ("Trainer(devices=-1, num_nodes=n)", False),
        ("Trainer(**options)", False),
    ],
)
def test_numbers_of_lightning(trainer, found):
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
    script = f"import lightning\nn = options = None\nlightning.{trainer}\n"
    assert ("E214" in dict(codes("srun python fit.py\n", head, fit=script))) == found
    alone = head.replace("#SBATCH --ntasks-per-node=4\n", "")
    assert "E214" not in dict(codes("python fit.py\n", alone, fit=script))


def test_a_variable_that_stays_text():
    launch = "srun bash -c 'torchrun --nnodes=1 --node_rank={} --standalone a.py'\n"
    assert ("E313", "error") in codes(launch.format(r"\$SLURM_NODEID"))
    assert "E313" not in dict(codes(launch.format("$SLURM_NODEID")))
    assert "E313" not in dict(codes("python a.py --filter '$name'\n"))
    double = 'srun bash -c "torchrun --nnodes=1 --node_rank=\\$SLURM_NODEID --standalone a.py"\n'
    assert "E313" not in dict(codes(double))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("checkpoint=a\npython a.py $chekpoint\n", True),
        ("master_addr=$(hostname)\nexport MASTER_ADDR=$MASTER_ADDR\npython a.py\n", False),
        ("data_dir=a\npython a.py $DATA_DIR\n", True),
        ("checkpoint=a\necho $checkpoint\npython a.py $chekpoint\n", False),
        ("checkpoint=a\npython a.py ${chekpoint:-b}\n", False),
        ("source env.sh\ncheckpoint=a\npython a.py $chekpoint\n", False),
        ("layer1=a\npython a.py $layer2\n", False),
    ],
)
def test_a_name_that_nothing_sets(body, found):
    assert (("E314", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("port", "severity"),
    [
        ("$((10000 + ${SLURM_JOB_ID: -4}))", "warning"),
        ("$((10000 + $(echo $SLURM_JOB_ID | tail -c 4)))", "warning"),
        ("$((10000 + 10#${SLURM_JOB_ID: -4}))", None),
        ("$((10000 + SLURM_JOB_ID % 10000))", "advice"),
        ("$(expr 10000 + $(echo $SLURM_JOB_ID | tail -c 4))", "advice"),
    ],
)
def test_digits_of_the_job_id(port, severity):
    found = codes(f"export MASTER_PORT={port}\nsrun torchrun --master_port=$MASTER_PORT a.py\n")
    assert dict(found).get("E303") == severity


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('DATA="<path to the data>"', True),
        ("DATA=/path/to/data", True),
        ("export WANDB_PROJECT=YOUR_PROJECT", True),
        ("DATA=/data/your_lab", True),
        ("DATA=/data/lab  # replace /path/to/data", False),
        ('awk "{ print $1 < 3 }"', False),
        ('if [ "$1" = "<help>" ]; then exit; fi', False),
    ],
)
def test_placeholders_in_the_script(line, found):
    assert ("E116" in dict(codes(f"{line}\npython a.py\n"))) == found


def test_a_template_is_advice():
    head = "#!/bin/bash\n#SBATCH -p {part}\n#SBATCH -t {time}\n#SBATCH -A {account}\n"
    assert ("E116", "advice") in codes("python a.py\n", head)
    assert ("E116", "warning") in codes("python a.py\n", "#!/bin/bash\n#SBATCH -p {part}\n")
    jube = "#!/bin/bash\n#SBATCH --time=#TIME#\n#SBATCH --cpus-per-task=#CPUS#\n"
    assert {code for code, _ in codes("python a.py\n", jube)} == {"E116"}


def test_a_token_in_an_argument():
    token = "hf_" + "a" * 34
    assert ("E406", "warning") in codes(f"python a.py --token {token}\n")
    assert "E406" not in dict(codes(f"git checkout {'0123456789' * 4}\npython a.py\n"))


def test_a_pipe_in_a_step():
    inner = "srun bash -c 'python a.py | tee log'\n"
    assert ("E505", "warning") in codes(inner)
    assert "E505" not in dict(codes(inner.replace("'python", "'set -o pipefail; python")))


@pytest.mark.parametrize(
    ("body", "severity"),
    [
        ("export OMP_NUM_THREADS=16\ntorchrun --standalone --nproc_per_node=2 a.py\n", "advice"),
        ("export OMP_NUM_THREADS=4\ntorchrun --standalone --nproc_per_node=2 a.py\n", None),
    ],
)
def test_threads_of_ranks(body, severity):
    assert dict(codes(body, f"{JOB}#SBATCH --cpus-per-task=8\n")).get("E403") == severity


def test_no_cpus_for_many_ranks():
    torchrun = "torchrun --standalone --nproc_per_node=8 a.py\n"
    assert dict(codes(torchrun))["E403"] == "advice"
    assert "E403" not in dict(codes(torchrun, f"{JOB}#SBATCH --cpus-per-gpu=8\n"))


def test_gpus_that_are_not_requested():
    assert ("E118", "advice") in codes("accelerate launch --multi_gpu a.py\n")
    assert ("E118", "advice") in codes("python a.py --device=cuda:0\n")
    assert "E118" not in dict(codes("python a.py --device=cpu\n"))


def test_deepspeed_without_hosts():
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=4\n"
    assert ("E201", "error") in codes("deepspeed --num_gpus 4 a.py\n", head)
    assert "E201" not in dict(codes("deepspeed --hostfile hosts --num_gpus 4 a.py\n", head))


GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


def test_rules_follow_an_import():
    head = f"{JOB}#SBATCH --ntasks-per-node=2\n"
    module = "import torch\ndef save(model):\n    torch.save(model, 'last.pt')\n"
    plain = f"from util import save\n{GROUP}save(1)\n"
    assert ("E611", "warning") in codes("srun python a.py\n", head, a=plain, util=module)
    guarded = f"from util import save\n{GROUP}if dist.get_rank() == 0:\n    save(1)\n"
    assert "E611" not in dict(codes("srun python a.py\n", head, a=guarded, util=module))
    loader = "from torch.utils.data import DistributedSampler\ns = DistributedSampler([])\n"
    epochs = f"from util import s\n{GROUP}for epoch in range(3):\n    print(epoch)\n"
    assert ("E602", "warning") in codes("srun python a.py\n", head, a=epochs, util=loader)
    epochs = epochs.replace("print(epoch)", "s.set_epoch(epoch)")
    assert "E602" not in dict(codes("srun python a.py\n", head, a=epochs, util=loader))


def test_the_rank_of_a_node_that_torchrun_chooses_itself():
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --exclusive\n"
    launch = "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID {} a.py\n"
    static = launch.format("--master_addr=$(hostname) --master_port=29500")
    assert ("E308", "warning") in codes(static, head)
    c10d = launch.format("--rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500")
    assert ("E308", "advice") in codes(c10d, head)


def test_a_script_that_makes_its_folder_and_submits_itself():
    head = "#!/bin/bash\n#SBATCH --output=logs/%j.out\n"
    itself = "if [ -z $SLURM_JOB_ID ]; then\n  mkdir -p {}\n  sbatch $0\n  exit\nfi\npython a.py\n"
    assert "E501" not in dict(codes(itself.format("logs"), head))
    assert "E501" in dict(codes(itself.format("other"), head))


def test_a_script_whose_first_line_is_damaged():
    assert [code for code, _ in codes("python a.py\n", f"dd{JOB}")] == ["E101", "E102"]


def test_the_index_of_an_array_that_is_not_one():
    line = "python a.py $SLURM_ARRAY_TASK_ID\n"
    assert ("E407", "advice") in codes(line)
    assert "E407" not in dict(codes(line, f"{JOB}#SBATCH --array=1-3\n"))


def test_an_equals_sign_in_quotes_is_an_argument():
    assert "E209" not in dict(codes('echo "=" * 60\n'))


@pytest.mark.parametrize(
    ("head", "severity"),
    [
        ("#SBATCH -N 1\n#SBATCH --gpus-per-node=2\n", "warning"),
        ("#SBATCH -N 1\n#SBATCH --gpus-per-node=8\n", "advice"),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=2\n", "advice"),
        ("#SBATCH -N 1\n#SBATCH --exclusive\n", None),
    ],
)
def test_ports_of_jobs_with_whole_nodes(head, severity):
    body = "srun torchrun --nproc_per_node=2 a.py\n"
    assert dict(codes(body, f"#!/bin/bash\n{head}")).get("E302") == severity


def test_programs_one_after_the_other():
    body = "python a.py\npython b.py\n"
    assert ("E507", "advice") in codes(body)
    assert "E507" not in dict(codes(f"set -e\n{body}"))
    assert "E507" not in dict(codes("python a.py && python b.py\n"))


def test_a_notebook_is_the_purpose_of_its_job():
    body = "srun jupyter notebook --no-browser &\nsrun python a.py\nwait\n"
    assert "E508" not in dict(codes(body))
    assert "E508" in dict(codes(body.replace("jupyter notebook", "tensorboard --logdir x")))


def test_a_pipe_after_a_python_file():
    assert ("E505", "warning") in codes("./watch.py | tee log\n")


def test_threads_without_cpus():
    body = "export OMP_NUM_THREADS=8\nsrun python a.py\n"
    assert ("E403", "advice") in codes(body)
    assert "E403" not in dict(codes(body, f"{JOB}#SBATCH --exclusive\n"))


@pytest.mark.parametrize(
    ("more", "severity"), [("", "advice"), ("#SBATCH --gres=gpu:2\n", "warning")]
)
def test_gpus_of_the_command_line_of_sbatch(more, severity):
    head = f"#!/bin/bash\n#SBATCH --ntasks-per-node=1\n{more}"
    body = "srun python a.py --devices $SLURM_GPUS_PER_NODE\n"
    assert ("E407", severity) in codes(body, head)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--num_nodes=2 --num_gpus=4", "E205"),
        ("--nnodes=2", "E205"),
        ("--nodes 2", "E205"),
        ("--hostfile=hosts", "E202"),
        ("--hostfile=hosts --no_ssh --node_rank=$RANK", ""),
        ("$OPTIONS", ""),
    ],
)
def test_deepspeed_under_srun_on_several_nodes(options, code):
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=4\n#SBATCH --exclusive\n"
    found = codes(f"srun deepspeed {options} a.py --x\n", head)
    assert {c for c, _ in found} & {"E202", "E205"} == {code} - {""}


def test_deepspeed_has_as_many_ranks_as_gpus():
    head = "#!/bin/bash\n#SBATCH -N 1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=2\n"
    assert ("E403", "warning") in codes("deepspeed a.py\n", head)
    assert "E403" not in dict(codes("deepspeed --include localhost:0 a.py\n", head))
    assert ("E204", "warning") in codes("deepspeed --num_gpus=8 a.py\n", head)


def test_accelerate_counts_the_processes_of_all_machines():
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=4\n"
    options = "--num_processes=8 --num_machines=2 --machine_rank=$R --main_process_port=29501"
    assert ("E202", "error") in codes(f"srun accelerate launch {options} a.py\n", head)
    assert "E204" not in dict(codes(f"srun -n 2 accelerate launch {options} a.py\n", head))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ray start --head\npython a.py\n", True),
        ("srun -N 1 -n 1 ray start --head --block &\npython a.py\n", True),
        ("ray start --head\nsrun -N 1 ray start --address=$H:6379 --block &\npython a.py\n", False),
        ("ray symmetric-run --address $H:6379 -- python a.py\n", False),
        ("ray start --head\nbash start_worker.sh\n", False),
    ],
)
def test_a_cluster_of_ray_has_all_nodes(body, found):
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --exclusive\n"
    assert (("E201", "error") in codes(body, head)) == found


@pytest.mark.parametrize("name", ["soruce", "exprot", "pyhton", "tochrrun"])
def test_a_program_with_its_letters_in_another_order(name):
    assert ("E212", "warning") in codes(f"{name} a.sh\n")
    assert "E212" not in dict(codes(f"{name}() {{ :; }}\n{name} a.sh\n"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd /path/to/code", True),
        ("srun fit --data=/path/to/data", True),
        ("echo 'usage: fit /path/to/data'", False),
        ("complain 'Set DATA=/path/to/data'", False),
        ("bash -c 'fit --data=/path/to/data'", True),
        ("cd /scratch/path/to/code", False),
    ],
)
def test_placeholders_in_commands(line, found):
    assert ("E116" in dict(codes(f"{line}\n"))) == found


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        ("torchrun --standalone --nproc_per_node=4 a.py --num_workers=4", False),
        ("torchrun --standalone --nproc_per_node=4 a.py --num_workers=8", True),
        ("srun -n 1 torchrun --standalone --nproc_per_node=4 a.py --num_workers=4", True),
    ],
)
def test_without_srun_a_launcher_has_the_cpus_of_all_tasks(launch, found):
    head = "#!/bin/bash\n#SBATCH -N 1\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=4\n"
    head += "#SBATCH --gpus-per-node=4\n"
    assert ("E402" in dict(codes(f"{launch}\n", head))) == found


@pytest.mark.parametrize(
    ("last", "found"), [("wait", True), ("kill $(jobs -p)\nwait", False), ("kill %1\nwait", False)]
)
def test_a_wait_for_what_the_script_has_ended(last, found):
    assert ("E503" in dict(codes(f"srun python a.py &\nsrun python b.py &\n{last}\n"))) == found


def test_only_a_launcher_that_expects_other_nodes_waits_for_them():
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --exclusive\n"
    for options, waits in (("--nnodes=2", True), ("--nproc_per_node=1", False)):
        found = lint(f"{head}torchrun {options} a.py\n", path="job.sh", files=TextFiles({}))
        (one,) = [f for f in found if f.code == "E201"]
        assert ("times out" in one.what) == waits


@pytest.mark.parametrize(
    ("port", "found"),
    [
        ("$((20000 + SLURM_JOB_ID % 50000))", True),
        ("$(( 60000 + ($RANDOM % 10000) ))", True),
        ("$((20000 + RANDOM % 50000))", False),
        ("$((10000 + ${SLURM_JOB_ID} % 50000))", False),
    ],
)
def test_ports_that_are_too_high(port, found):
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --exclusive\n"
    body = f"export MASTER_PORT={port}\nexport MASTER_ADDR=$(hostname)\nsrun python a.py\n"
    assert (("E303", "warning") in codes(body, head)) == found


@pytest.mark.parametrize(
    ("array", "found"), [('("$all")', True), ("($all)", False), ('("$other")', False)]
)
def test_host_names_in_one_element(array, found):
    head = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --exclusive\n"
    body = f"all=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nother=1\nnodes={array}\n"
    assert (
        ("E307", "warning") in codes(f"{body}srun -w ${{nodes[0]}} python a.py\n", head)
    ) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("export CUDA_VISIBLE_DEVICES=0, 1", True),
        ("export CUDA_VISIBLE_DEVICES=0,1", False),
        ("export A=a, B", False),
        ('export A="0, 1"', False),
    ],
)
def test_a_value_that_is_cut_at_a_space(line, found):
    assert (("E209", "error") in codes(f"{line}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('cat "$(readlink -f "$0")"', False),
        ("cp $(realpath $0) logs/", False),
        ('cd "$(dirname "$0")"', True),
        ('DIR=$(dirname "$(readlink -f "$0")")', True),
    ],
)
def test_a_script_may_read_its_own_copy(line, found):
    assert ("E211" in dict(codes(f"{line}\npython a.py\n"))) == found


@pytest.mark.parametrize(
    ("option", "found"),
    [("--local_rank", [("E207", "advice")]), ("--local-rank", []), ("--x", [("E207", "error")])],
)
def test_the_option_of_the_old_launcher(option, found):
    script = f"import argparse\np = argparse.ArgumentParser()\np.add_argument('{option}')\n"
    script += "a = p.parse_args()\n"
    head = "#!/bin/bash\n#SBATCH -N 1\n#SBATCH --gpus-per-node=2\n#SBATCH --exclusive\n"
    line = "python -m torch.distributed.launch --nproc_per_node=2 a.py\n"
    assert [one for one in codes(line, head, a=script) if one[0] == "E207"] == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("train() {\n  python a.py $1\n}\ntrain 0\necho done\n", True),
        ("train() {\n  python a.py $1 || exit 1\n}\ntrain 0\necho done\n", False),
        ("bash train.sh 1\necho done\n", True),
        ("python a.py\necho done\nexit 0\n", True),
        ("python a.py || exit 1\necho done\nexit 0\n", False),
        ("python a.py\nexit\n", False),
        ("for i in 1 2; do\n  python a.py $i\ndone\necho done\n", True),
        ("for i in 1 2; do\n  python a.py $i || bad=1\ndone\necho done\n", False),
        ("for i in 1 2; do\n  if ! python a.py $i; then bad=1; fi\ndone\necho done\n", False),
        ("while python a.py; do\n  sleep 1\ndone\necho done\n", False),
    ],
)
def test_failures_that_a_later_command_hides(body, found):
    assert (("E507", "warning") in codes(body)) is found


@pytest.mark.parametrize("step", ["train {}", "bash train.sh {}"])
def test_a_wait_for_functions_and_scripts(step):
    steps = "".join(f"{step.format(n)} &\n" for n in range(2))
    body = f"train() {{\n  python a.py $1\n}}\n{steps}wait\n"
    assert ("E503", "warning") in codes(body)


def test_a_function_in_the_background_without_a_wait():
    body = "train() {\n  python a.py $1\n}\ntrain 0 &\ntrain 1 &\n"
    assert ("E504", "error") in codes(body)


def test_the_directory_of_the_copy_in_a_script_that_prints_its_job():
    body = 'echo "job ${SLURM_JOB_ID:-local}"\ncd "$(dirname "$0")"\npython a.py\n'
    assert ("E211", "warning") in codes(body)


def test_a_placeholder_without_a_separator():
    assert ("E116", "warning") in codes('export DATA="YourPath/raw"\npython a.py\n')


@pytest.mark.parametrize(
    ("signal", "run", "found"),
    [
        ("B:USR1@60", "srun python a.py", True),
        ("B:SIGUSR1@60", "python a.py", True),
        ("USR1@60", "srun python a.py", False),
        ("B:TERM@60", "srun python a.py", False),
        ("B:USR1@60", "srun python a.py &\nwait $!", False),
    ],
)
def test_a_handler_that_waits_for_a_command(signal, run, found):
    body = f"#SBATCH --signal={signal}\ntrap 'scontrol requeue $SLURM_JOB_ID' SIGUSR1\n{run}\n"
    assert (("E509", "warning") in codes(body)) is found


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("mkdir -p out\n{run}\nrsync -a out/ /home/me/\n", True),
        ("mkdir -p $TMP/out\n{run}\ncp -r $TMP/out /home/me\n", True),
        ("mkdir -p out\n{run}\ntar czf out.tgz out\n", True),
        ("{run}\ncp best.pt /home/me\n", False),
        ("mkdir -p out\n{run}\ncp out/best.pt /home/me\n", False),
        ("{run}\ncp best.pt /home/me\necho copied\n", True),
        ("{run}\npython plot.py\n", False),
        ("python -m pip install a\nrun_all --fast\necho done\n", False),
        ("for i in 1 2; do\n{run}\ndate\ndone\n", True),
        ("{run}\nif [ -f a ]; then cp a b; fi\ndate\n", True),
        ("{run}\nif [ -f a ]; then date; fi\n", True),
        ("set -e\n{run}\ncp best.pt /home/me\necho copied\n", False),
        ("{run}\nscancel $SLURM_JOB_ID\n", True),
        ("{run}\nscancel $OTHER\n", False),
        ("{run}\nscancel $OTHER\necho done\n", True),
    ],
)
def test_what_hides_a_failure(end, found):
    kinds = codes(end.replace("{run}", "python train.py"), train="print(1)\n")
    assert (("E507", "warning") in kinds) == found


@pytest.mark.parametrize(("address", "found"), [("%u@site.org", True), ("me@site.org", False)])
def test_patterns_in_an_address(address, found):
    head = f"#!/bin/bash\n#SBATCH --mail-user={address}\n#SBATCH --output=%u-%j.out\n"
    assert (("E106", "warning") in codes("python a.py\n", head)) == found


@pytest.mark.parametrize(
    ("head", "threads", "found"),
    [
        ("#SBATCH --ntasks=1\n", 8, True),
        ("#SBATCH --ntasks=8\n#SBATCH --nodes=1\n", 8, False),
        ("#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=8\n", 8, False),
        ("#SBATCH --ntasks=1\n#SBATCH --exclusive\n", 8, False),
        ("#SBATCH --ntasks=1\n", 1, False),
    ],
)
def test_threads_of_a_job_without_cpus(head, threads, found):
    body = f"export OMP_NUM_THREADS={threads}\npython a.py\n"
    assert (("E403", "advice") in codes(body, f"#!/bin/bash\n{head}", a="print(1)\n")) == found


RANKS = """\
import os
import torch.distributed as dist

rank = int(os.environ["SLURM_PROCID"])
world_size = int(os.environ["SLURM_NTASKS"])
dist.init_process_group("nccl", rank=rank, world_size=world_size)
"""


@pytest.mark.parametrize(
    ("tasks", "command", "script", "found"),
    [
        (4, "python a.py", RANKS, True),
        (4, "srun python a.py", RANKS, False),
        (4, "torchrun --nproc_per_node=4 a.py", RANKS, False),
        (1, "python a.py", RANKS, False),
        (4, "python a.py", RANKS.replace("SLURM_NTASKS", "WORLD_SIZE"), False),
        (4, "python a.py", RANKS.replace("dist.init", "print"), False),
    ],
)
def test_one_of_several_tasks(tasks, command, script, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node={tasks}\n"
    assert (("E201", "error") in codes(f"{command}\n", head, a=script)) == found


@pytest.mark.parametrize(
    ("address", "found"), [("#sBATCH", True), ("#SBatch", True), ("#SBATCH", False)]
)
def test_directives_in_other_cases(address, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n{address} --time=1:00:00\n"
    assert ("E103" in dict(codes("python a.py\n", head))) == found


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("module load cuda/12.2", True),
        ("module purge\nmodule load gcc/11 cuda", True),
        ("module load anaconda3", False),
        ("module load site-tools", False),
        ("ml cuda conda", False),
        ("module load anaconda3\nconda init bash", True),
        ("conda init\nsource ~/.bashrc", False),
    ],
)
def test_modules_before_conda(before, found):
    assert ("E408" in dict(codes(f"{before}\nconda activate a\npython a.py\n"))) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('out="~/runs"\nmkdir -p $out\npython a.py\n', True),
        ("out=~/runs\nmkdir -p $out\npython a.py\n", False),
        ('out="$HOME/runs"\nmkdir -p $out\npython a.py\n', False),
        ('out="~/runs"\npython a.py --out $out\n', False),  # Python may expand it
    ],
)
def test_a_home_in_quotes(body, found):
    assert (("E313", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("memory", "body", "found"),
    [
        ("100", "python a.py\n", True),
        ("0", "python a.py\n", False),
        ("4000", "python a.py\n", False),
        ("100G", "python a.py\n", False),
        ("100", "hostname\n", False),
    ],
)
def test_memory_without_a_unit(memory, body, found):
    head = f"#!/bin/bash\n#SBATCH --mem={memory}\n"
    assert (("E111", "warning") in codes(body, head)) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("cd data || exit 1\npython a.py\necho done\n", True),
        ("python a.py || exit 1\necho done\n", False),
        ("python a.py\n[ -f x ] || exit 1\necho done\n", False),
        ("mkdir x\necho $?\npython a.py\necho done\n", True),
        ("python a.py\ncode=$?\necho done\n", True),
    ],
)
def test_only_what_follows_a_program_decides(body, found):
    assert (("E507", "warning") in codes(body, a="print(1)\n")) == found


@pytest.mark.parametrize("word", ["array", "ray"])
def test_words_that_start_other_nodes(word):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n"
    found = codes("python a.py\n", head, a=f"import json\nx = '{word}'\n")
    assert ("E201" in dict(found)) == (word == "array")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py &\npid=$!\nwait $pid\necho done\n", "warning"),
        ("trap 'kill $pid' TERM\npython a.py &\npid=$!\nwait $pid\necho done\n", "warning"),
        ("trap 'echo failed' ERR\npython a.py\necho done\n", "warning"),
        ("python a.py &\npid=$!\nwait $pid || exit 1\necho done\n", None),
        ("python a.py\nrmdir tmp\n", "advice"),
        ("python a.py\ncp best.pt /home/me\n", "advice"),
    ],
)
def test_the_status_of_a_job(body, found):
    assert dict(codes(body, a="print(1)\n")).get("E507") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("set -u\npython a.py\necho $ExpName\n", True),
        ("set -euo pipefail\nlog=logs/${ExpName}.txt\npython a.py > $log\n", True),
        ("python a.py\necho $ExpName\n", False),
        ("set -u\npython a.py\necho ${ExpName:-none}\n", False),
        ("set -u\nfor ExpName in a b; do echo $ExpName; done\n", False),
        ("set -u\npython a.py --name $EXPNAME\n", False),  # may come from outside
    ],
)
def test_variables_at_which_bash_stops(body, found):
    assert ("E314" in dict(codes(body))) == found


@pytest.mark.parametrize(
    ("tasks", "script", "found"),
    [
        (4, "import json\nprint(json.dumps(1))\n", True),
        (1, "import json\nprint(json.dumps(1))\n", False),
        (4, "import os\nprint(os.environ['SLURM_PROCID'])\n", False),
        (4, "from mpi4py import MPI\nprint(MPI)\n", False),
        (4, "import lightning\nprint(lightning)\n", False),
    ],
)
def test_tasks_that_do_the_same_work(tasks, script, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks={tasks}\n"
    assert (("E202", "warning") in codes("srun python a.py\n", head, a=script)) == found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('--config"$NAME"', True),
        ('--epochs 3 --config"${NAME}"', True),
        ('--config "$NAME"', False),
        ('--config="$NAME"', False),
        ('-c"$NAME"', False),
        ("--config --$NAME", False),
    ],
)
def test_an_option_and_a_variable_in_one_word(arguments, found):
    script = f"NAME=$1\npython a.py {arguments}\n"
    assert (("E207", "warning") in codes(script, a="print(1)\n")) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("set -e\npython a.py\nif [ $? -ne 0 ]; then\nexit 3\nfi\n", True),
        ("set -e\npython a.py \\\n  --epochs 3\n\ncode=$?\nexit $code\n", True),
        ("set -e\npython a.py &\nwait $!\ncode=$?\nexit $code\n", True),
        ("python a.py\ncode=$?\nexit $code\n", False),
        ("set +e\npython a.py\ncode=$?\nset -e\nexit $code\n", False),
        ("set -e\ncode=0\npython a.py || code=$?\nexit $code\n", False),
        ('set -e\npython a.py\necho "status $?"\n', False),
        ("set -e\nif python a.py; then\n:\nfi\ncode=$?\n", False),
        ("python a.py\ncode=$?\nset -e\nexit $code\n", False),
    ],
)
def test_a_status_that_set_e_makes_zero(body, found):
    assert (("E511", "advice") in codes(body, a="print(1)\n")) == found
