#!/bin/sh
# Gets the programs that tests use, where that takes no password: as root, with apt-get.
#
# Without redis-server tests use the one of the 'local' extra; without chromium, curl, ip or
# openssl the tests that need them are skipped and say so.
set -eu

missing=
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v curl >/dev/null || missing="$missing curl"
command -v ip >/dev/null || missing="$missing iproute2"
command -v openssl >/dev/null || missing="$missing openssl"
command -v chromium >/dev/null || missing="$missing chromium fonts-dejavu-core"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "test tools: going on without$missing" >&2
    exit 0
fi
echo "test tools: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
{
    apt-get update -q || { sleep 5; apt-get update -q; }
    # shellcheck disable=SC2086 # one word a package
    apt-get install -y -q --no-install-recommends $missing
} >&2 || echo "test tools: going on without$missing" >&2
