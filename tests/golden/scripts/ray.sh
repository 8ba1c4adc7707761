#!/bin/bash
# Made by: echelon script --style ray train.py --epochs 14 --note 'it'"'"'s a test'
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=128
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

# --- environment
if ! module load cuda/12.4; then
    echo 'cannot load the environment modules cuda/12.4' "on $(hostname); list them with: module avail" >&2
    exit 1
fi
source /home/ada/venv/bin/activate || exit 1
export NCCL_DEBUG=INFO
export DATA_DIR='/data/tiny imagenet'
# Slurm 22.05 to 23.02 does not pass this to srun.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
python=python3

# --- check that ray supports tokens
"$python" - <<'CHECK' || exit 69
import re, sys
from importlib.metadata import PackageNotFoundError, version
install = f"{sys.executable} -m pip install --upgrade 'ray[default]'"
try:
    found = version("ray")
except PackageNotFoundError:
    sys.exit(f"the Python {sys.executable} has no ray: {install}")
parts = re.match(r"(\d+)\.(\d+)", found)
if not parts or tuple(map(int, parts.groups())) < (2, 56):
    sys.exit(f"ray {found} is too old, the job needs 2.56: {install}")
CHECK

# --- addresses of the nodes
# This script runs on the first node, and so does Ray's head. Use the address of the interface that
# leads to the last node: host names may not resolve, and there may be several interfaces.
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
PEER_ADDR=$(scontrol show node "$peer" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
if [ -z "$PEER_ADDR" ]; then
    echo "scontrol shows no address for the node '$peer'" >&2
    exit 1
fi
address_towards() {
    "$python" -c 'import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((sys.argv[1], 9))  # sends nothing
print(probe.getsockname()[0])' "$1"
}
free_port() {
    "$python" -c 'import socket
probe = socket.socket()
probe.bind(("", 0))
print(probe.getsockname()[1])'
}
MASTER_ADDR=$(address_towards "$PEER_ADDR")
export python MASTER_ADDR PEER_ADDR
export -f address_towards free_port

# --- a Ray cluster for this job only
# Ignore the settings of any other Ray cluster.
unset RAY_ADDRESS RAY_API_SERVER_ADDRESS RAY_AUTH_TOKEN_PATH RAY_NAMESPACE RAY_TMPDIR
unset RAY_JOB_CONFIG_JSON_ENV_VAR
# Each job has a new token, which is not in any file. Requests without it are rejected.
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
# On busy nodes and slow storage, Ray's default of 30 s for a node to join may be too short.
export RAY_raylet_start_wait_time_s="${RAY_raylet_start_wait_time_s:-120}"
# All users can read Ray's own directory, so put it into a private one. Paths of sockets may have
# 107 characters, and Ray adds up to 69; use /tmp if TMPDIR is too long for that.
make_home() {
    local name="ray-$SLURM_JOB_ID-XXXXXX" base="${TMPDIR:-/tmp}"
    if [ $((${#base} + 1 + ${#name})) -gt 38 ] || [ ! -w "$base" ]; then base=/tmp; fi
    mktemp -d "$base/$name"
}
export -f make_home
RAY_HOME=$(make_home) || exit 1
export RAY_HOME
tmp=$RAY_HOME
# How long Ray keeps running after the warning from Slurm, so that the driver can save. The rest of
# the time until Slurm kills the job is for Ray to shut down.
linger=$(scontrol show config | sed -n 's/^KillWait *= *\([0-9]*\).*/\1/p')
linger=$((${linger:-30} - 5))
if [ $linger -lt 1 ]; then linger=1; fi
export linger

# Runs on every node until the job ends.
node=$(cat <<'NODE'
role=$1
if [ "$role" = head ]; then
    towards=$PEER_ADDR
else
    towards=$MASTER_ADDR
    RAY_HOME=$(make_home) || exit 1
fi
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    # The interface to the other nodes; host names may resolve to another one.
    interface=$(ip -o route get "$towards" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
    if [ -n "$interface" ]; then
        export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
        export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
    fi
fi
gpus=$(tr , '\n' <<< "${CUDA_VISIBLE_DEVICES:-}" | grep -c .)
cpus=${SLURM_CPUS_ON_NODE:-1}
set -- --block --disable-usage-stats --temp-dir="$RAY_HOME/t" \
    --node-ip-address="$(address_towards "$towards")" \
    --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 \
    --num-cpus="$cpus" --num-gpus="$gpus"
# By default, Ray uses a share of the memory of the whole machine. The memory that Slurm allocated,
# in MiB, is in one of these variables, or is the limit of our cgroup.
memory=${SLURM_MEM_PER_NODE:-0}
if [ "$memory" = 0 ]; then memory=$((${SLURM_MEM_PER_CPU:-0} * cpus)); fi
if [ "$memory" = 0 ]; then memory=$((${SLURM_MEM_PER_GPU:-0} * gpus)); fi
if [ "$memory" = 0 ]; then
    memory=$("$python" - <<'LIMIT'
from pathlib import Path
limits = [1 << 62]
for line in Path("/proc/self/cgroup").read_text().splitlines():
    _, kinds, inner = line.split(":", 2)
    root = Path("/sys/fs/cgroup", "memory" if kinds else "")
    here = root / inner.strip("/")
    for folder in (here, *here.parents) if not kinds or "memory" in kinds.split(",") else ():
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):
                pass
print(min(limits) >> 20 if min(limits) < 1 << 50 else 0)
LIMIT
    )
fi
if [ "${memory:-0}" -gt 0 ]; then
    set -- "$@" --memory="$((memory * 700000))" --object-store-memory="$((memory * 300000))"
fi
if [ "$role" = head ]; then
    # The dashboard, which Ray Train queries, is only accessible from this node.
    set -- "$@" --head --port=0 --dashboard-host=127.0.0.1 --dashboard-port=0
    # Their default ports would collide if two jobs run on a node.
    AUTOSCALER_METRIC_PORT=$(free_port) DASHBOARD_METRIC_PORT=$(free_port)
    export AUTOSCALER_METRIC_PORT DASHBOARD_METRIC_PORT
    # Ray Client needs grpc.
    if "$python" -c 'import grpc' 2>/dev/null; then
        set -- "$@" --ray-client-server-port="$(free_port)"
    fi
else
    set -- "$@" --address="$RAY_ADDRESS"
fi
setsid "$python" -m ray.scripts.scripts start "$@" > "$RAY_HOME/log" 2>&1 < /dev/null &
ray=$!
# Ray gets two seconds to end its processes; Slurm may not wait much longer.
end_ray() {
    touch "$RAY_HOME/told"
    kill -TERM $ray
    for _ in {1..20}; do kill -0 $ray || break; sleep 0.1; done
    kill -KILL -- -$ray
}
# The batch script holds the other end of our standard input. When it exits, Ray ends.
{ trap '' TERM INT; cat > /dev/null; end_ray; } <&0 2>/dev/null &
leash=$!
# Slurm warns the driver as well, and the batch script exits after the driver.
late=''
be_warned() {
    if [ -n "$late" ]; then return; fi
    {
        trap '' TERM INT
        end_s=$((SECONDS + linger))
        while [ $SECONDS -lt $end_s ]; do kill -0 $ray || exit; sleep 0.2; done
        end_ray
    } < /dev/null > /dev/null 2>&1 &
    late=$!
}
trap be_warned TERM INT
while kill -0 $ray 2>/dev/null; do wait $ray; done
kill -KILL $leash 2>/dev/null
if [ ! -e "$RAY_HOME/told" ]; then
    echo "Ray exited on $SLURMD_NODENAME:" >&2
    tail -n 20 "$RAY_HOME/log" >&2
fi
# Some of its processes may still be exiting and writing files.
for _ in {1..50}; do rm -rf "$RAY_HOME" 2>/dev/null && break; sleep 0.1; done
NODE
)

stop_ray() {
    trap - EXIT
    exec {leash}>&-
    wait $head $workers
    rm -rf "$tmp"
}
head='' workers=''
mkfifo "$tmp/leash"
exec {leash}<> "$tmp/leash"
trap stop_ray EXIT
trap 'exit 143' TERM

one="--ntasks-per-node=1 --overlap"
srun --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" $one --unbuffered \
    bash -c "$node" bash head \
    < "$tmp/leash" {leash}>&- &
head=$!
until [ -s "$RAY_HOME/t/ray_current_cluster" ]; do
    kill -0 $head 2>/dev/null || exit 1  # srun printed the reason
    sleep 0.1
done
RAY_ADDRESS=$(cat "$RAY_HOME/t/ray_current_cluster")
export RAY_ADDRESS
others=$((SLURM_JOB_NUM_NODES - 1))
if [ $others -gt 0 ]; then
    srun --nodes=$others --ntasks=$others --exclude="$SLURMD_NODENAME" $one --unbuffered \
        bash -c "$node" bash worker < "$tmp/leash" {leash}>&- &
    workers=$!
fi
# Wait until all nodes have joined; many nodes take longer.
"$python" - "$SLURM_JOB_NUM_NODES" "${workers:-$head}" {leash}>&- <<'COUNT' || exit 1
import os, sys, time, ray
ray.init(logging_level="error", log_to_driver=False)
wanted = int(sys.argv[1])
deadline_s = time.monotonic() + 120 + wanted
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    try:
        os.kill(int(sys.argv[2]), 0)
    except ProcessLookupError:
        sys.exit(f"only {there} of {wanted} nodes have joined: srun exited, see its output above")
    if time.monotonic() > deadline_s:
        sys.exit(f"only {there} of {wanted} nodes have joined in time")
    time.sleep(0.1)
COUNT

# --- start
# The script is the driver; `ray.init()` finds the cluster through RAY_ADDRESS.
srun --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" $one "$python" train.py --epochs 14 --note 'it'"'"'s a test' {leash}>&-
code=$?
exit $code
