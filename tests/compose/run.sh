#!/bin/bash
# Runs the job of deploy/compose on a real Docker engine, without pulling an image; the last
# line is JSON. `make compose-test` calls it, as root on a Debian machine.
#
# An engine that answers is used as it is; else one of its own is started (engine.sh), which
# needs Debian's docker.io. Everything that a registry has is fetched before, outside of it.
# Ends with 3 where no engine can be had, and says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
PYTHON=$PWD/.venv/bin/python
started=${STARTED:-$(date +%s)}
export STARTED=$started
say() { printf '[%4ds] compose test: %s\n' $(($(date +%s) - started)) "$*" >&2; }

fetch() {
    if ! timeout 10 docker info >/dev/null 2>&1; then
        own=yes
        packages="docker.io iptables iproute2"
    fi
    missing=
    for package in ${packages:-} redis-server binutils; do
        dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
    done
    if [ -n "$missing" ]; then
        say "installing$missing"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086 # one word a package
        { apt-get -o DPkg::Lock::Timeout=300 -qq update &&
            apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing
        } >"$WORK/apt.log" 2>&1 || {
            tail -n 20 "$WORK/apt.log" >&2
            say "can't install$missing"
            exit 3
        }
    fi
    if ! docker compose version >/dev/null 2>&1; then
        say "fetching Compose"
        python3 -m venv "$WORK/compose"
        "$WORK/compose/bin/pip" install -q --disable-pip-version-check --require-hashes \
            -r "$here/requirements.txt" >&2 || {
            say "can't fetch Compose"
            exit 3
        }
        mkdir -p "$WORK/docker/cli-plugins"
        ln -s "$WORK/compose/bin/docker-compose" "$WORK/docker/cli-plugins/docker-compose"
        export DOCKER_CONFIG=$WORK/docker
    fi
    say "gathering wheels"
    rm -rf deploy/compose/wheelhouse
    "$PYTHON" -m pip wheel -q --disable-pip-version-check -w deploy/compose/wheelhouse \
        '.[torch,examples]' "${TORCH:-torch==2.13.0}" >&2
}

build() {
    bash "$here/base_image.sh" paramfleet-base:local redis-server >/dev/null
    bash "$here/base_image.sh" paramfleet-build:local binutils >/dev/null
    say "made base images of this machine"
    # BuildKit where a client here has it: the buildx plugin, or Debian's own, which needs none.
    client=
    if docker buildx version >/dev/null 2>&1; then
        client=docker
    elif /usr/bin/docker --version 2>/dev/null | grep -q ' 20\.'; then
        client=/usr/bin/docker
    fi
    for target in server worker; do
        DOCKER_BUILDKIT=$([ -n "$client" ] && echo 1 || echo 0) "${client:-docker}" build -q \
            -f deploy/compose/Dockerfile --target "$target" \
            --build-arg BASE_IMAGE=paramfleet-base:local \
            --build-arg BUILD_IMAGE=paramfleet-build:local -t "paramfleet-$target:local" . >/dev/null
        say "built paramfleet-$target: $(docker image inspect -f '{{.Size}}' \
            "paramfleet-$target:local" | awk '{printf "%.0f MB", $1 / 1e6}')"
    done
}

if [ "${1:-}" != --inside ]; then
    if [ "$(id -u)" != 0 ]; then
        say "needs root, to install and start a Docker engine"
        exit 3
    fi
    WORK=$(mktemp -d /var/tmp/compose-test.XXXXXX)
    export WORK
    trap 'rm -rf --one-file-system "$WORK" deploy/compose/wheelhouse' EXIT
    own=
    fetch
    if [ -n "$own" ]; then
        bash "$here/engine.sh" bash "$here/run.sh" --inside "$@"
    else
        bash "$here/run.sh" --inside "$@"
    fi
    exit
fi
shift
say "the engine answers: $(docker info -f '{{.ServerVersion}}, {{.Driver}}')"
build
"$PYTHON" "$here/cluster.py" "$@"
