#!/bin/sh
# Starts `paramfleet ARGS...` under the address that other containers reach this one by.
set -eu

if [ -z "${PARAMFLEET_HOST:-}" ]; then
    # The first address of this container's own name: that of its first network.
    PARAMFLEET_HOST=$(hostname -i 2>/dev/null | cut -d' ' -f1)
    [ -n "$PARAMFLEET_HOST" ] || PARAMFLEET_HOST=$(hostname)
    export PARAMFLEET_HOST
fi
exec paramfleet "$@"
