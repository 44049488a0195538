# Shared by the other scripts; source it. It never changes anything by being sourced.
# shellcheck shell=bash
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TALLY_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tally
# Used by the scripts that source this one.
# shellcheck disable=SC2034
DEMO_MODEL=$TALLY_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf

# Every Debian package, and why it is needed.
# shellcheck disable=SC2034
BUILD_PACKAGES=(
    build-essential cmake ninja-build pkg-config git ca-certificates curl
    python3 python3-pip python3-venv # fetching the demo model; nothing of it is needed to serve
    libmicrohttpd-dev                # HTTP
    libjansson-dev                   # JSON
    libcyaml-dev libyaml-dev         # the configuration file; the first's pkg-config file asks for the second without depending on it
    libpcre2-dev                     # pre-tokenizer patterns
    libutf8proc-dev                  # Unicode normalisation
    libxxhash-dev                    # hashes
    libcurl4-openssl-dev             # the bundled client
)
# shellcheck disable=SC2034
TEST_PACKAGES=(
    libcmocka-dev           # unit tests
    libsimde-dev qemu-user  # instruction sets that this CPU lacks
    clang                   # the second compiler
    clang-format clang-tidy # style and lint
    shellcheck              # these scripts
)

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root, and there is no sudo: $*"
    fi
}

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs those of the packages that are missing; touches neither network nor root when none is.
install_packages() {
    local missing=() package
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        say "not a Debian system: install the equivalents of these yourself: $*"
        return
    fi
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing: ${missing[*]}"
    as_root apt-get -o DPkg::Lock::Timeout=300 -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -qq -y --no-install-recommends \
        install "${missing[@]}" >&2
}

# A Python that can make virtual environments and has pip: Debian's own before any other that PATH may have first.
system_python() {
    local python
    for python in /usr/bin/python3 python3; do
        if "$python" -c 'import pip, venv, ensurepip' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    die "no python3 with pip and venv (Debian: python3-pip python3-venv)"
}

# configure DIR [cmake options]: quick when nothing changed.
configure() {
    local dir=$1 output
    shift
    if command -v ccache >/dev/null; then set -- "$@" -DCMAKE_C_COMPILER_LAUNCHER=ccache; fi
    output=$(cmake -S "$ROOT" -B "$dir" -G Ninja "$@" 2>&1) || {
        say "$output"
        return 1
    }
}

# compile DIR [targets]: every error of every file, not only the first.
compile() {
    local dir=$1 quiet=()
    shift
    [ -t 2 ] || quiet=(--quiet)
    ninja -C "$dir" -j "$(nproc)" -k 0 "${quiet[@]}" "$@" >&2
}

# Is anything listening on a TCP port of this machine?
port_is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# wait_until_ready PID PORT SECONDS: until /ready answers 200, while the process lives.
wait_until_ready() {
    local end=$((SECONDS + $3))
    while kill -0 "$1" 2>/dev/null; do
        curl -fsS -o /dev/null "http://127.0.0.1:$2/ready" 2>/dev/null && return 0
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
    return 1
}
