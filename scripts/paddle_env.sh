#!/bin/sh
# Makes the virtual environment of PaddlePaddle for `make bench-paddle`, once.
#
# 3.0.0 is the newest but one release whose wheel still holds the parameter server; its
# Python needs a protobuf that still knows FieldDescriptor.label.
#
# Variables: PADDLE_VENV  the environment's folder
#            PYTHON       a Python of 3.9 to 3.12 to make it with
#
# Plain POSIX sh. Everything it says goes to standard error.
set -eu
cd "$(dirname "$0")/.."

VENV=${PADDLE_VENV:-.venv-paddle}
NEEDED='paddlepaddle==3.0.0 numpy==2.2.6 protobuf==5.29.5 setuptools'
PY=$VENV/bin/python

say() { printf '%s\n' "$*" >&2; }
fail() { say "paddle: $*"; exit 1; }

# A registry may hiccup: it gets a second try.
again() {
    "$@" >&2 && return
    say "paddle: '$1' failed; once more in 5 s"
    sleep 5
    "$@" >&2
}

is_supported() {
    "$1" -c 'import sys, venv, ensurepip
sys.exit(not (3, 9) <= sys.version_info[:2] < (3, 13))' 2>/dev/null
}

[ "$(cat "$VENV/.installed" 2>/dev/null)" != "$(pwd -P) $NEEDED" ] || exit 0

python=
for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    if is_supported "$candidate"; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no Python from 3.9 to 3.12 that makes environments:" \
    "install one, or name it with: make bench-paddle PYTHON=/path/to/python3.11"
say "paddle: making $VENV with $("$python" --version 2>&1); the wheel has 190 MB"
"$python" -m venv --clear "$VENV" >&2
# shellcheck disable=SC2086 # one requirement a word
again "$PY" -m pip --disable-pip-version-check --no-input install -q $NEEDED ||
    fail "pip found no $NEEDED for this machine"
"$PY" -c 'from paddle.base import core; core.DistFleetWrapper' >&2 ||
    fail "this build of paddlepaddle has no parameter server"
printf '%s' "$(pwd -P) $NEEDED" >"$VENV/.installed"
