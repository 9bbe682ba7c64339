#!/bin/sh
# Starts `paramfleet ARGS...` under the address that other containers reach this one by.
set -eu

if [ -z "${PARAMFLEET_HOST:-}" ] && [ -n "${PARAMFLEET_REDIS:-}" ]; then
    lib=${PARAMFLEET_LIB:-/usr/local/lib}
    tries=10 # Redis may just be starting again
    until PARAMFLEET_HOST=$(python3 -I -S "$lib/address.py" "$PARAMFLEET_REDIS"); do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || {
            echo "entrypoint: set PARAMFLEET_HOST to this container's address" >&2
            exit 1
        }
        sleep 2
    done
    export PARAMFLEET_HOST
fi
exec paramfleet "$@"
