#!/usr/bin/env bash
# Installs what the Makefile's targets need.
#
#   tools/setup.sh user               .venv with Echelon and PyTorch
#   tools/setup.sh user LAYER…        and more: check (linters, types), docs (the site), test (packages for tests)
#   tools/setup.sh peers              .venv-peers with Lightning, Transformers and others, for tests
#   tools/setup.sh system [full]      the distribution's Slurm, MariaDB, OpenSSH, Chromium and podman; full: and more
#
# Steps that are up to date are skipped silently.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %3d s  %s\n' "$SECONDS" "$*" >&2; }
fail() { say "$1"; printf '%s\n' "hint: $2" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

install_line() {
    printf '%sapt-get install --no-install-recommends %s' "$([ "$(id -u)" = 0 ] || echo 'sudo ')" "$*"
}

apt_install() {
    say "installing $*"
    local log
    log=$(mktemp)
    # The package list may be outdated or empty: refresh it only if the first attempt fails.
    apt_get install -y --no-install-recommends "$@" ||
        { apt_get update && apt_get install -y --no-install-recommends "$@"; } ||
        { tail -n 20 "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" -o DPkg::Lock::Timeout=300 2>&1 |
        tee "$log" | show_apt_progress
}

# Turns apt-get's output into one line every 10 s.
show_apt_progress() {
    local line status total='' got=0 unpacked=0 ready=0 next_s=$((SECONDS + 10))
    while true; do
        status=0
        IFS= read -r -t 10 line || status=$?
        [ $status -eq 0 ] || [ $status -gt 128 ] || return 0
        case $line in
            Get:*) got=$((got + 1)) ;;
            "Unpacking "*) unpacked=$((unpacked + 1)) ;;
            "Setting up "*) ready=$((ready + 1)) ;;
        esac
        [[ ! $line =~ ([0-9]+)\ newly\ installed ]] || total=" of ${BASH_REMATCH[1]}"
        if [ $SECONDS -ge $next_s ]; then
            say "  downloaded $got, unpacked $unpacked, ready $ready$total packages"
            next_s=$((SECONDS + 10))
        fi
    done
}

# --- venv -----------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer on PATH" "install one, or name it: make PYTHON=/path/to/python3.11"
}

make_venv() {
    local folder=$1 python version
    python=$(find_python)
    say "creating $folder with $("$python" --version 2>&1)"
    rm -rf "$folder"
    if ! "$python" -m venv "$folder" >/dev/null 2>&1; then
        # Debian and Ubuntu package the venv module separately.
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        may_install || fail "$python cannot create virtual environments" "$(install_line "python$version-venv")"
        apt_install "python$version-venv"
        rm -rf "$folder"
        "$python" -m venv "$folder"
    fi
    echo "$PWD ${PYTHON:-}" >"$folder/made-for"
}

count_installed() {
    set -- "$1"/lib/python*/site-packages/*.dist-info
    echo $#
}

# show_progress FOLDER: turns pip's output into one line per package, and one every 10 s in between.
show_progress() {
    local folder=$1 line status before=0 total=0 last='the package index'
    local wheel='(Downloading|Using cached|Processing) (.*/)?([^/-]+)-([^-]+)-[^/]*\.whl( \([0-9.]+ [kMG]?B\))?( \(from |$)'
    while true; do
        status=0
        IFS= read -r -t 10 line || status=$?
        if [ $status -gt 128 ] && [ $total -gt 0 ]; then
            say "  unpacked $(($(count_installed "$folder") - before)) of $total packages"
        elif [ $status -gt 128 ]; then
            say "  … waiting for $last"
        elif [ $status -gt 0 ]; then
            return 0
        elif [[ $line =~ $wheel ]]; then
            last="${BASH_REMATCH[3]} ${BASH_REMATCH[4]}"
            say "  $last${BASH_REMATCH[5]}"
        elif [[ $line == "Installing collected packages: "* ]]; then
            total=$(wc -w <<<"${line#*: }")
            before=$(count_installed "$folder")
            say "  unpacking packages: $total"
        fi
    done
}

# constraints.txt pins every version, including the build back-end, hence no build isolation. Modules are compiled on
# first import, which takes a fraction of the time needed to compile everything here.
pip_install() {
    local folder=$1 log=$1/pip.log
    shift
    if ! "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --no-compile --no-build-isolation -c constraints.txt "$@" 2>&1 | tee "$log" | show_progress "$folder"; then
        tail -n 20 "$log" >&2
        fail "pip install $* failed" "the full output is in $log"
    fi
}

declare -A LAYERS=(
    [user]='--editable .[train,data,dash,lint]'
    [check]='--group check'
    [docs]='--group docs'
    [test]='--editable .[ray,tensorboard] --group test'
    [peers]='--editable .[train] --group peers'
)

# Modules that no test imports: a third of all.
UNUSED='/(tests|rllib|graph_objs|validators|mypy|pip|opinfo)/'

# install_layers FOLDER LAYER…: creates the environment if it is missing or has another Python, then installs each
# layer whose requirements have changed since it was last installed.
install_layers() {
    local folder=$1 layer wanted changed=''
    shift
    for layer in "$@"; do [ -n "${LAYERS[$layer]:-}" ] || fail_part "$layer"; done
    if [ "$(cat "$folder/made-for" 2>/dev/null)" != "$PWD ${PYTHON:-}" ] || ! "$folder/bin/python" -c '' 2>/dev/null
    then
        make_venv "$folder"
    fi
    for layer in "$@"; do
        # The settings of ruff and other tools in pyproject.toml do not affect what is installed.
        wanted=$({ echo "${LAYERS[$layer]}"; sed '/^# --- ruff/,$d' pyproject.toml; cat constraints.txt; } |
            sha256sum | cut -d ' ' -f 1)
        [ "$(cat "$folder/layer-$layer" 2>/dev/null)" != "$wanted" ] || continue
        say "installing layer '$layer' into $folder: ${LAYERS[$layer]}"
        # The pip bundled with Python 3.11 does not support --group.
        [[ ${LAYERS[$layer]} != *--group* ]] || pip_install "$folder" pip
        pip_install "$folder" setuptools
        # shellcheck disable=SC2086  # several words
        pip_install "$folder" ${LAYERS[$layer]}
        if [ "$layer" = test ]; then
            # Some tests import everything as a user without write permission.
            say "compiling the modules that tests import"
            PYTHONWARNINGS=ignore "$folder/bin/python" -m compileall -qq -j 0 -x "$UNUSED" \
                "$folder"/lib/python*/site-packages || true
        fi
        echo "$wanted" >"$folder/layer-$layer"
        changed=yes
    done
    [ -z "$changed" ] || say "$folder is ready"
}

# The frameworks as they were a year ago, in a folder to put before .venv-peers' own modules. Without their dependencies,
# which are those of today, except where they refuse to run with them.
YEAR_OLD=(accelerate==1.11.0 lightning==2.5.6 transformers==4.57.1 tokenizers==0.22.1 huggingface-hub==0.36.0)

install_year_old() {
    local folder=.venv-peers/year-old
    [ "$(cat "$folder/versions" 2>/dev/null)" != "${YEAR_OLD[*]}" ] || return 0
    say "installing last year's frameworks into $folder: ${YEAR_OLD[*]}"
    rm -rf "$folder"
    .venv-peers/bin/python -m pip install --disable-pip-version-check --no-input --quiet --no-compile --no-deps \
        --target "$folder" "${YEAR_OLD[@]}"
    echo "${YEAR_OLD[*]}" >"$folder/versions"
}

# --- system packages ------------------------------------------------------------------------

# required program : package that provides it. The -core packages contain MariaDB's programs without a service that
# starts automatically.
SYSTEM='slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge slurmdbd:slurmdbd
mariadbd:mariadb-server-core mariadb:mariadb-client-core ip:iproute2 nsenter:util-linux sshd:openssh-server ssh:openssh-client
podman:podman runc:runc skopeo:skopeo docker-registry:docker-registry chromium:chromium'

missing_packages() {
    local pair
    for pair in $SYSTEM; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || echo "${pair##*:}"
    done
}

# Tests start their own sshd, Prometheus and registry. The packages' services would open this machine to others: they are neither
# started nor enabled, unless the package was there before.
POLICY=/usr/sbin/policy-rc.d

deny_services() {
    [ ! -e "$POLICY" ] || return 0 # the machine has its own policy
    printf '%s\n' '#!/bin/sh' 'case $1 in ssh* | prometheus* | docker-registry*) exit 101 ;; esac' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
    trap 'as_root rm -f "$POLICY"' EXIT
}

disable_services() {
    [ ! -d /run/systemd/system ] || as_root systemctl disable --now --quiet "$@" || true
}

setup_system() {
    local missing
    [ "${1:-}" != full ] || SYSTEM+=' prometheus:prometheus patchelf:patchelf mksquashfs:squashfs-tools'
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    if may_install; then
        # If one package is unavailable under this name, still install the others.
        deny_services
        apt_install "${missing[@]}" || for package in "${missing[@]}"; do apt_install "$package" || true; done
        [[ " ${missing[*]} " != *" openssh-server "* ]] || disable_services ssh.service ssh.socket
        [[ " ${missing[*]} " != *" docker-registry "* ]] || disable_services docker-registry.service
        [[ " ${missing[*]} " != *" prometheus "* ]] || disable_services prometheus.service
        mapfile -t missing < <(missing_packages)
        [ ${#missing[@]} -gt 0 ] || return 0
    fi
    say "missing: ${missing[*]}; the tests that need them are left out"
    printf '%s\n' "hint: $(install_line "${missing[*]}")" >&2
    [ "${CI:-}" != true ] || fail "CI=true: nothing may be missing" "install the packages above"
}

fail_part() { fail "unknown part '$1'" "tools/setup.sh user [check] [docs] [test] | peers | system [full]"; }

case "${1:-}" in
    user) install_layers .venv "$@" ;;
    peers)
        install_layers .venv-peers peers
        install_year_old
        ;;
    system) setup_system "${2:-}" ;;
    *) fail_part "${1:-}" ;;
esac
