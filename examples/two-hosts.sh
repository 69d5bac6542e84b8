#!/bin/sh
# A memory node and its clients on two hosts, by the commands of the README. The hosts are network namespaces of this
# machine, joined by a link of their own; they go when the script ends.
#
# Usage: examples/two-hosts.sh [RECORDS]      needs root or user namespaces, ip, awk, and guira in PATH or as GUIRA
set -eu
guira=${GUIRA:-guira} records=${1-10000}
case $records in
'' | *[!0-9]* | 0* | ???????*)
    echo "$0: RECORDS is a whole number from 1 to 999999, not '$records'" >&2
    exit 2
    ;;
esac
# This shell goes on as the host that has the memory.
if [ "${GUIRA_TWO_HOSTS-}" != "$PPID" ]; then
    user=
    unshare --net true 2>/dev/null || user=--map-root-user
    # exec keeps the number of the parent.
    GUIRA_TWO_HOSTS=$PPID exec unshare $user --net sh "$0" "$records"
fi
work=$(mktemp -d) client='' node=''
cleanup() {
    trap '' INT TERM HUP
    [ -z "$node$client" ] || kill -9 $node $client 2>/dev/null || true
    wait 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
# Not every shell runs that on a signal, too.
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# The other host, as long as somebody sleeps there.
unshare --net sleep 1000 &
client=$!
while [ "$(readlink /proc/$client/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
elsewhere() { nsenter --target "$client" --net -- "$@"; }
ip link set lo up
ip link add mem1 type veth peer name eth0 netns "$client"
ip addr add 10.77.0.1/24 dev mem1
ip link set mem1 up
elsewhere ip addr add 10.77.0.2/24 dev eth0
elsewhere ip link set eth0 up

# On the host that has the memory.
"$guira" token "$work/token" >/dev/null
"$guira" serve --listen 0.0.0.0:7711 --capacity 100k --token-file "$work/token" >"$work/serve" 2>&1 &
node=$!
tries=0
until [ -s "$work/serve" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || { echo "the node does not start" >&2; exit 1; }
    sleep 0.01
done
kill -0 "$node" 2>/dev/null || { cat "$work/serve" >&2; exit 1; }

# On the other.
table=tcp://10.77.0.1:7711
if elsewhere env -u GUIRA_TOKEN_FILE "$guira" get $table cuckoo >/dev/null 2>&1; then
    echo "somebody without the token was let in" >&2
    exit 1
fi
export GUIRA_TOKEN_FILE="$work/token"
elsewhere "$guira" put $table cuckoo "Guira guira" >/dev/null
echo "cuckoo: $(elsewhere "$guira" get $table cuckoo)"
awk -v records="$records" 'BEGIN { for (n = 1; n < records; n++) printf "key-%d\tvalue of %d\n", n, n * 7919 }' >"$work/tsv"
elsewhere "$guira" load $table - --input tsv <"$work/tsv" >/dev/null
elsewhere "$guira" dump $table | grep '^key-' | sort >"$work/dump"
sort "$work/tsv" | cmp - "$work/dump"
elsewhere "$guira" check $table | tail -1
awk '/mem1:/ { print $2 " bytes came over the link, and " $10 " went" }' /proc/net/dev
# In order: it tells its clients, and ends by itself.
kill -TERM "$node"
wait "$node"
node=
