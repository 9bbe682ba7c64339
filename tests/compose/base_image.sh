#!/bin/bash
# base_image.sh IMAGE [PACKAGE...]: makes a base image of what this Debian machine has.
#
# It holds Debian's essential packages, this machine's python3 (at its own path, without
# site-packages but pip), what Python's modules load, and the installed PACKAGEs; no registry
# and no network is needed. It carries this machine's certificates: for tests here alone.
set -euo pipefail
image=$1
shift

python=$(python3 -c 'import sys; print(sys.base_prefix)') # an own build's folder, or /usr
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$(mktemp -d /var/tmp/base-image.XXXXXX)
trap 'rm -rf "$work"' EXIT

# The owners of the libraries that Python's modules load. dpkg may know one below /lib or
# below /usr/lib, so both are asked for.
libraries=$(find "$python/bin/python$version" "$python/lib/python$version/lib-dynload" \
    "$python"/lib/libpython* -type f -print0 2>/dev/null | xargs -0 ldd 2>/dev/null |
    awk '/=> \//{print $3}' | sort -u | xargs -r readlink -f | sed 'p;s#^/usr##' | sort -u)
# shellcheck disable=SC2086 # one word a file
owners=$(dpkg -S $libraries 2>/dev/null | cut -d: -f1 | sort -u || true)
essential=$(dpkg-query -Wf '${Package} ${Essential}\n' | awk '$2 == "yes" {print $1}')
seeds="$essential ca-certificates libstdc++6 $owners $*"
[ "$python" != /usr ] || seeds="$seeds python3 python3-venv python3-pip"

# With all that they depend on, of what is installed.
# shellcheck disable=SC2046,SC2086
wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances --installed $(printf '%s\n' $seeds | sort -u) 2>/dev/null |
    grep -E '^[a-z0-9]' | sed 's/:any$//' | sort -u)
# shellcheck disable=SC2086
present=$(dpkg-query -Wf '${db:Status-Abbrev} ${binary:Package}\n' $wanted 2>/dev/null |
    awk '$1 == "ii" {print $2}' || true)
for package in "$@"; do
    # shellcheck disable=SC2086
    printf '%s\n' $present | grep -qE "^$package(:|$)" ||
        { echo "base image: $package is not installed here" >&2; exit 1; }
done

# shellcheck disable=SC2086
{
    dpkg -L $present
    printf '%s\n' /bin /sbin /lib /lib64 /etc/ld.so.conf /etc/ld.so.conf.d /etc/ld.so.cache
    find /etc/ssl/certs -maxdepth 1
} >"$work/list"
# Each file under its real folder (/bin/bash is usr/bin/bash), folders before what is in them:
# an import stops at a file below a link to a folder.
python3 - "$work/list" >"$work/files" <<'PY'
import os
import re
import sys

found = {"/tmp", "/root", "/var/tmp", "/proc", "/sys", "/dev"}
with open(sys.argv[1]) as listed:
    for file in set(listed.read().split("\n")):
        if not file.startswith("/") or file == "/.":
            continue
        if re.match(r"/usr/share/(doc|man|locale|info|lintian)/", file):
            continue
        if not os.path.lexists(file):
            continue
        file = os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
        while file != "/":
            found.add(file)
            file = os.path.dirname(file)
print("\n".join(file[1:] for file in sorted(found)))
PY
# Everybody may pass the folders above Python, though here one may be root's alone.
above=$(dirname "$python")
while [ "$above" != / ]; do
    install -d -m 755 "$work/own$above"
    echo "${above#/}"
    above=$(dirname "$above")
done >"$work/passed"
grep -vxFf "$work/passed" "$work/files" >"$work/kept"
tar -C / --numeric-owner --no-recursion -cf "$work/root.tar" -T "$work/kept"
tar -C "$work/own" --numeric-owner --owner=0 --group=0 --no-recursion -rf "$work/root.tar" \
    -T "$work/passed"
# Users of its own, not this machine's.
install -d -m 755 "$work/own/etc"
printf '%s\n' root:x:0:0:root:/root:/bin/bash \
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin >"$work/own/etc/passwd"
printf '%s\n' root:x:0: nogroup:x:65534: >"$work/own/etc/group"
tar -C "$work/own" --numeric-owner --owner=0 --group=0 -rf "$work/root.tar" etc/passwd etc/group
if [ "$python" != /usr ]; then
    folder=${python#/}
    packages=$folder/lib/python$version/site-packages
    tar -C / --numeric-owner --exclude=__pycache__ --exclude="$folder/lib/python$version/test" \
        --exclude="$folder/lib/python$version/config-*" --exclude='*.a' \
        --exclude="$packages/*" -rf "$work/root.tar" "$folder"
    (cd / && tar --numeric-owner --exclude=__pycache__ -rf "$work/root.tar" \
        "$packages/pip" "$packages"/pip-*.dist-info)
fi
docker import -c "ENV PATH=$python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    -c 'CMD ["bash"]' - "$image" <"$work/root.tar"
