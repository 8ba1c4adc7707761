"""The style `ray`: a Ray cluster that is the job's own, and the script as its driver. Pure.

It is rendered as the other plain styles are, and needs nothing of Echelon on the nodes. Two such
jobs may share a node, and other users are there too: so every port is one that the system gives,
every folder has a name of its own and is closed to others, and nobody gets in without a token.
"""

CLUSTER = r"""# --- is there a Ray that can keep strangers out?
"$python" - <<'CHECK' || exit 69
import sys
from importlib.metadata import PackageNotFoundError, version
install = f"{sys.executable} -m pip install --upgrade 'ray[default]'"
try:
    found = version("ray")
except PackageNotFoundError:
    sys.exit(f"the Python {sys.executable} has no ray: {install}")
if tuple(int(part) for part in found.split(".")[:2]) < (2, 52):
    sys.exit(f"ray {found} is too old, it takes 2.52: {install}")
CHECK

# --- where the nodes reach each other
# This script runs on the first node, and so does Ray's head. Its address is the one by which the
# last node is reached: host names may not resolve, and there may be several interfaces.
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
PEER_ADDR=$(scontrol show node "$peer" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
if [ -z "$PEER_ADDR" ]; then
    echo "scontrol does not say where the node '$peer' is" >&2
    exit 1
fi
address_towards() {
    "$python" -c 'import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((sys.argv[1], 9))  # sends nothing
print(probe.getsockname()[0])' "$1"
}
MASTER_ADDR=$(address_towards "$PEER_ADDR")
export python MASTER_ADDR PEER_ADDR
export -f address_towards

# --- a Ray cluster of this job's own
# What a surrounding Ray may have left must not lead there.
unset RAY_ADDRESS RAY_API_SERVER_ADDRESS RAY_AUTH_TOKEN_PATH RAY_NAMESPACE RAY_TMPDIR
unset RAY_JOB_CONFIG_JSON_ENV_VAR
# Its token is new for each job, and in no file. Whoever does not have it is refused.
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
# Ray opens its own folder to all users: it lies in one that is open to nobody. The path is short,
# for the names of its sockets may have about a hundred letters.
RAY_HOME=$(TMPDIR=/tmp mktemp -d -t "ray-$SLURM_JOB_ID-XXXXXX") || exit 1
export RAY_HOME
tmp=$RAY_HOME

# What a node does, until it is told to stop.
node=$(cat <<'NODE'
role=$1
if [ "$role" = head ]; then
    towards=$PEER_ADDR
else
    towards=$MASTER_ADDR
    RAY_HOME=$(TMPDIR=/tmp mktemp -d -t "ray-$SLURM_JOB_ID-XXXXXX") || exit 1
fi
# gloo and NCCL want the interface that leads to the other nodes; a host name may lead elsewhere.
interface=$(ip -o route get "$towards" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
if [ -n "$interface" ] && [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
fi
set -- --block --disable-usage-stats --temp-dir="$RAY_HOME/t" \
    --node-ip-address="$(address_towards "$towards")" \
    --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 \
    --num-cpus="${SLURM_CPUS_ON_NODE:-1}" \
    --num-gpus="$(tr , '\n' <<< "${CUDA_VISIBLE_DEVICES:-}" | grep -c .)"
# Left alone, Ray would take its share of the whole machine's memory.
if [ "${SLURM_MEM_PER_NODE:-0}" -gt 0 ]; then
    set -- "$@" --memory="$((SLURM_MEM_PER_NODE * 700000))" \
        --object-store-memory="$((SLURM_MEM_PER_NODE * 300000))"
fi
if [ "$role" = head ]; then
    # The dashboard, which Ray Train asks how things are, is for this node alone.
    set -- "$@" --head --port=0 --dashboard-host=127.0.0.1 --dashboard-port=0
    # Where it can serve Ray Client it does, on a port that two jobs would want: this one is free.
    port=$("$python" -c 'import socket, grpc
probe = socket.socket()
probe.bind(("", 0))
print(probe.getsockname()[1])' 2>/dev/null) && set -- "$@" --ray-client-server-port="$port"
else
    set -- "$@" --address="$RAY_ADDRESS"
fi
setsid "$python" -m ray.scripts.scripts start "$@" > "$RAY_HOME/log" 2>&1 < /dev/null &
ray=$!
# It gets two seconds to end its own processes: Slurm may not wait much longer for us.
end_ray() {
    touch "$RAY_HOME/told"
    kill -TERM $ray
    for _ in {1..20}; do kill -0 $ray || break; sleep 0.1; done
    kill -KILL -- -$ray
}
# The batch script holds the other end of our input: when it goes, so does Ray.
{ cat > /dev/null; end_ray; } <&0 2>/dev/null &
leash=$!
trap 'end_ray 2>/dev/null' TERM INT
while kill -0 $ray 2>/dev/null; do wait $ray; done
kill $leash 2>/dev/null
if [ ! -e "$RAY_HOME/told" ]; then
    echo "Ray has ended on $SLURMD_NODENAME:" >&2
    tail -n 20 "$RAY_HOME/log" >&2
fi
# Some of its processes may still be about to go, and write.
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

one="--ntasks-per-node=1 --overlap --unbuffered"
srun --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" $one bash -c "$node" bash head \
    < "$tmp/leash" {leash}>&- &
head=$!
until [ -s "$RAY_HOME/t/ray_current_cluster" ]; do
    kill -0 $head 2>/dev/null || exit 1  # it has said why
    sleep 0.1
done
RAY_ADDRESS=$(cat "$RAY_HOME/t/ray_current_cluster")
export RAY_ADDRESS
others=$((SLURM_JOB_NUM_NODES - 1))
if [ $others -gt 0 ]; then
    srun --nodes=$others --ntasks=$others --exclude="$SLURMD_NODENAME" $one \
        bash -c "$node" bash worker < "$tmp/leash" {leash}>&- &
    workers=$!
fi
# The script shall find all of them.
"$python" - "$SLURM_JOB_NUM_NODES" "${workers:-$head}" {leash}>&- <<'COUNT' || exit 1
import os, sys, time, ray
ray.init(logging_level="error", log_to_driver=False)
wanted, deadline_s = int(sys.argv[1]), time.monotonic() + 120
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    os.kill(int(sys.argv[2]), 0)  # whoever starts them has said why it does not
    if time.monotonic() > deadline_s:
        sys.exit(f"only {there} of {wanted} nodes have joined Ray's head")
    time.sleep(0.1)
COUNT
"""
"""Everything but the script itself."""


def render_driver(words: str) -> str:
    """Return how the script is started.

    Args:
        words: what to run, quoted for bash.
    """
    return f"""\
# --- start
# The script is the driver: `ray.init()` finds the cluster by RAY_ADDRESS.
srun --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" $one {words} {{leash}}>&-
code=$?
exit $code
"""
