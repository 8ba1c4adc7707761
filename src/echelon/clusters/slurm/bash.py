"""Bash functions that the scripts of several styles share."""

PEER = """\
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
PEER_ADDR=$(scontrol show node "$peer" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
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
"""
"""The address of the last node, and a function that returns our own address towards another."""

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
"""gloo and NCCL use the interface to $towards, unless the user has chosen one."""
