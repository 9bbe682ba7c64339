#!/bin/sh
# Makes the job's certificates, passwords and tokens, and gives each role its own, and no other.
# What is there and lasts is kept; nothing is printed that must stay secret.
set -eu
umask 077

authority=/authority
job=$PARAMFLEET_JOB
PARAMFLEET_TOKENS_FILE=$authority/tokens
export PARAMFLEET_TOKENS_FILE

paramfleet certs init --dir "$authority" --job "$job" \
    --role coordinator --role pserver --role worker --role serving --role admin
paramfleet certs issue --dir "$authority" --job "$job" --role redis --host redis
paramfleet certs redis-acl --dir "$authority" --job "$job"
[ -e "$authority/admin.token" ] ||
    paramfleet tokens new --role admin --name compose --output "$authority/admin.token"

give() {
    role=$1
    shift
    for file in ca.crt "$role.crt" "$role.key" "$@"; do
        cp "$authority/$file" "/roles/$role/.$file"
        mv "/roles/$role/.$file" "/roles/$role/$file"
    done
}
for role in coordinator pserver worker; do
    give "$role" "redis.$role.password" tokens
done
give serving tokens
give admin admin.token
give redis redis.acl
