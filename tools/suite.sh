#!/usr/bin/env bash
# Runs tests with the Slurm and the Python of another Debian suite, in a separate root file system.
#
#   tools/suite.sh trixie [PYTEST ARGUMENTS…]      runs tests/slurm by default
#
# The root is created once by debootstrap and kept in ECHELON_SUITES (~/.cache/echelon/suites). Each call copies
# the working tree into it. Needs root. To remove everything, `rm -r` the folder.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'suite: %3d s  %s\n' "$SECONDS" "$*" >&2; }
fail() { say "$1"; printf '%s\n' "hint: $2" >&2; exit 1; }

suite=${1:-}
[[ $suite =~ ^[a-z]+$ ]] || fail "no suite is named" "make test-suites SUITE=trixie"
shift
[ "$(id -u)" = 0 ] || fail "only root can make a root file system" "sudo make test-suites SUITE=$suite"
root=${ECHELON_SUITES:-$HOME/.cache/echelon/suites}/$suite

make_root() {
    local mirror script=
    command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap >&2
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' | awk '$2 == "Debian" {print $1; exit}')
    # For a suite newer than debootstrap itself, use the script of sid.
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=/usr/share/debootstrap/scripts/sid
    say "making $root from ${mirror:-the default mirror}"
    rm -rf "$root" "$root.part"
    mkdir -p "$root.part"
    debootstrap --variant=minbase \
        --include=ca-certificates,git,iproute2,iputils-ping,make,procps,python3-dev,python3-venv,gcc,sudo,util-linux \
        "$suite" "$root.part" "$mirror" ${script:+"$script"} 2>&1 | tee "$root.log" | show_progress ||
        fail "debootstrap failed" "see $root.log"
    mv "$root.part" "$root"
}

# Prints a line of debootstrap's output every 10 s.
show_progress() {
    local line next_s=$((SECONDS + 10))
    while IFS= read -r line; do
        [ $SECONDS -ge $next_s ] || continue
        say "  ${line#I: }"
        next_s=$((SECONDS + 10))
    done
}

copy_tree() {
    mkdir -p "$root/echelon"
    find "$root/echelon" -mindepth 1 -maxdepth 1 ! -name '.venv*' -exec rm -rf {} +
    git ls-files -z --cached --others --exclude-standard --deduplicate |
        tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
        tar --extract --no-same-owner --directory "$root/echelon"
    # Packaging tests ask git for the project's files.
    git -C "$root/echelon" init --quiet
    git -C "$root/echelon" add --all
    cp /etc/hosts /etc/resolv.conf "$root/etc/"
    # This machine's settings for package registries.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    ! [ -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
}

# Nodes of the sandbox enter their own mount namespaces, which would escape from a chroot; pivot_root prevents that.
# With ALONE set, the command has its own processes and network, and whatever it leaves running is killed: tests
# look at the whole machine for leftovers, and would find those of other work.
enter() {
    local variables alone=(${ALONE:+--pid --fork --kill-child --net})
    mapfile -t variables < <(env | grep -E '^(PIP_[A-Z_]+|https?_proxy|CI|TERM)=')
    unshare --mount --propagation private "${alone[@]}" bash -euc '
        root=$1 alone=$2
        shift 2
        mount --bind "$root" "$root"
        cd "$root"
        mount --rbind /dev dev
        if [ -n "$alone" ]; then
            ip link set lo up
            # Slurm finds no address to listen at where there is only loopback.
            ip link add net0 type veth peer name net1
            ip address add 192.0.2.1/24 dev net0
            ip link set net0 up
            ip link set net1 up
            mount -t proc proc proc
            mount -t sysfs sysfs sys
            mount --rbind /sys/fs/cgroup sys/fs/cgroup
        else
            for folder in proc sys; do mount --rbind "/$folder" "$folder"; done
        fi
        mount -t tmpfs tmpfs run
        if [ -d "$OLDPWD/../shared" ]; then mkdir -p shared; mount --bind "$OLDPWD/../shared" shared; fi
        pivot_root . .
        umount --lazy .
        cd /echelon
        [ -n "$alone" ] || exec "$@"
        # This shell stays: as process 1 it reaps orphans.
        status=0
        "$@" || status=$?
        exit $status' enter "$root" "${ALONE:-}" env --ignore-environment "${variables[@]}" HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

[ -e "$root/etc/debian_version" ] || make_root
say "copying the working tree to $root"
copy_tree
if [ "${1:-}" = -- ]; then # for manual inspection: tools/suite.sh trixie -- bash
    shift
    enter "$@"
    exit
fi
say "installing Slurm and the Python packages; later calls skip this"
enter make system
enter tools/setup.sh user test
say "$(enter slurmctld -V), $(enter .venv/bin/python --version)"
[ $# -gt 0 ] || set -- tests/slurm
ALONE=yes enter .venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not full" "$@"
