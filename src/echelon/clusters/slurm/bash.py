"""Bash that several styles' scripts have in common. Pure."""

PEER = """\
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
PEER_ADDR=$(scontrol show node "$peer" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
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
"""
"""Where the last node is, and by which of our addresses it is reached."""

FREE_PORT = """\
free_port() {
    "$python" -c 'import socket
probe = socket.socket()
probe.bind(("", 0))
print(probe.getsockname()[1])'
}
"""

INTERFACE = """\
interface=$(ip -o route get "$towards" 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
if [ -n "$interface" ]; then
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
fi
"""
"""gloo and NCCL use what leads there, unless the user says otherwise."""
