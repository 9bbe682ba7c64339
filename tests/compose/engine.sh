#!/bin/bash
# engine.sh COMMAND...: runs COMMAND with a Docker engine of its own, as root.
#
# The engine lives in network, mount, process and IPC namespaces of its own: its bridges, rules,
# mounts and containers are gone when COMMAND ends, however it ends. Nothing inside reaches a
# registry. DATA=FOLDER keeps its images for the next time. Ends with 3 if it doesn't start.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
    if ! unshare --net --mount --pid --ipc --fork --kill-child --mount-proc true; then
        echo "engine: this machine lets nobody have namespaces of their own" >&2
        exit 3
    fi
    RUN=$(mktemp -d /var/tmp/engine.XXXXXX)
    export RUN CGROUP=/engine-$$ DATA=${DATA:-$RUN/data}
    mkdir -p "$DATA"
    clean_up() {
        rm -rf --one-file-system "$RUN"
        for folder in /sys/fs/cgroup"$CGROUP" /sys/fs/cgroup/*"$CGROUP"; do
            [ -d "$folder" ] && find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null
        done
        true
    }
    trap clean_up EXIT
    unset DOCKER_HOST
    unshare --net --mount --pid --ipc --fork --kill-child --mount-proc \
        bash "$(readlink -f "$0")" --inside "$@" </dev/null
    exit
fi
shift

# Docker's name server asks another one about names of stopped containers. There is none to be
# reached from here, and each such question would wait for 10 s: this one says no at once.
NAMES=10.99.99.53
ip link set lo up
ip addr add "$NAMES/32" dev lo
python3 "$(dirname "$(readlink -f "$0")")/no_names.py" "$NAMES" &
names=$!
export DOCKER_HOST=unix://$RUN/docker.sock
dockerd --data-root "$DATA" --exec-root "$RUN/exec" --pidfile "$RUN/docker.pid" \
    -H "$DOCKER_HOST" --cgroup-parent "$CGROUP" --log-level warn --dns "$NAMES" \
    >"$RUN/dockerd.log" 2>&1 &
engine=$!
stop() {
    code=$?
    kill "$engine" 2>/dev/null || true
    wait "$engine" 2>/dev/null || true
    kill "$names" 2>/dev/null || true
    exit "$code"
}
trap stop EXIT
for _ in $(seq 600); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || {
        tail -n 5 "$RUN/dockerd.log" >&2
        echo "engine: dockerd doesn't start here" >&2
        exit 3
    }
    sleep 0.1
done
"$@"
