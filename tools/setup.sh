#!/usr/bin/env bash
# What `make` needs before it can check or test anything.
#
#   tools/setup.sh venv      .venv with Echelon, its extras and the development tools
#   tools/setup.sh peers     .venv-peers with Lightning and Accelerate, whose scripts must run unmodified
#   tools/setup.sh system    the distribution's Slurm, MariaDB and chromium, for the tests that use the real thing
#
# All do nothing, quickly, when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*" >&2; }
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
    # A machine's package list may be old or empty: refresh it only when the first try fails.
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1; then
        { as_root apt-get update &&
          as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
        } >"$log" 2>&1 || { tail -n 20 "$log" >&2; rm -f "$log"; return 1; }
    fi
    rm -f "$log"
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
    say "making $folder with $("$python" --version 2>&1)"
    rm -rf "$folder"
    if ! "$python" -m venv "$folder" >/dev/null 2>&1; then
        # Debian and Ubuntu split the venv module off.
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        may_install || fail "$python cannot make virtual environments" "$(install_line "python$version-venv")"
        apt_install "python$version-venv"
        rm -rf "$folder"
        "$python" -m venv "$folder"
    fi
}

# install_venv FOLDER WHAT…: an environment with what pip is told, unless it is there already.
install_venv() {
    local folder=$1 wanted
    shift
    # What pyproject.toml says of ruff and other tools changes nothing that is installed.
    wanted=$({ echo "$PWD ${PYTHON:-} $*"; sed '/^# --- ruff/,$d' pyproject.toml; cat constraints.txt; } |
        sha256sum | cut -d ' ' -f 1)
    if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$wanted" ] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    make_venv "$folder"
    say "installing what it needs, torch among it: minutes, in which nothing is said"
    # constraints.txt pins every version; the build back-end comes from there too, hence no isolation.
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt pip setuptools
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt \
        --no-build-isolation "$@"
    echo "$wanted" >"$folder/stamp"
}

# --- system packages ------------------------------------------------------------------------

# program that must be there : package that brings it. The -core packages have MariaDB's programs without a
# service that starts by itself.
SYSTEM='slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge slurmdbd:slurmdbd
mariadbd:mariadb-server-core mariadb:mariadb-client-core ip:iproute2 nsenter:util-linux chromium:chromium'

missing_packages() {
    local pair
    for pair in $SYSTEM; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || echo "${pair##*:}"
    done
}

setup_system() {
    local missing
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    if may_install; then
        # Where one package has another name, the others must not go without.
        apt_install "${missing[@]}" || for package in "${missing[@]}"; do apt_install "$package" || true; done
        mapfile -t missing < <(missing_packages)
        [ ${#missing[@]} -gt 0 ] || return 0
    fi
    say "missing: ${missing[*]}; the tests that need them are left out"
    printf '%s\n' "hint: $(install_line "${missing[*]}")" >&2
    [ "${CI:-}" != true ] || fail "CI=true: nothing may be missing" "install the packages above"
}

case "${1:-}" in
    venv) install_venv .venv --editable '.[train,data,dash,lint,ray,tensorboard]' --group dev ;;
    peers) install_venv .venv-peers --editable '.[train]' --group peers ;;
    system) setup_system ;;
    *) fail "unknown part '${1:-}'" "tools/setup.sh venv|peers|system" ;;
esac
