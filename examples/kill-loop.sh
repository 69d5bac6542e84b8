#!/bin/sh
# Kills writers of a table with SIGKILL, one after the other, at any moment, and sees that nothing they were told is
# stored is lost, and that nobody who goes on is held up.
#
# Usage: examples/kill-loop.sh [KILLS]      needs awk, and guira in PATH or as GUIRA=path/to/guira
set -eu
guira=${GUIRA:-guira} kills=${1-100}
case $kills in
'' | *[!0-9]* | 0* | ???????*)
    echo "$0: KILLS is a whole number from 1 to 999999, not '$kills'" >&2
    exit 2
    ;;
esac
work=$(mktemp -d)
table=shm://kill-loop-${work##*.}
cleanup() {
    trap '' INT TERM HUP
    # A writer that is waited for has no such file any more: its number may be another process's.
    for pid in "$work"/pid.*; do
        [ ! -e "$pid" ] || kill -9 "$(cat "$pid")" 2>/dev/null || true
    done
    wait 2>/dev/null
    # There is none if this comes before it was created.
    "$guira" destroy "$table" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
# Not every shell runs that on a signal, too.
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

"$guira" create "$table" --capacity 10k --extent-bytes 64MiB

# The value that is stored as number n: some are long.
value='function value(n) { return sprintf("%016.0f-%0*d", n, n % 5 ? 4 : 400, 0) }'

# Writer $1 in its life $2 stores ever larger numbers under 1,000 keys of its own, and writes down what is stored.
start() {
    awk -v writer="$1" -v life="$2" "$value"'
        BEGIN { for (n = 0; ; n++) printf "%s-%d\t%s\n", writer, n * 7919 % 1000, value(life * 1e9 + n) }
    ' 2>/dev/null | "$guira" load "$table" - --input tsv --acknowledge "$work/stored.$1" >/dev/null 2>>"$work/log" &
    echo $! >"$work/pid.$1"
}

# Each life of one of three writers ends by a kill.
life=0
while [ $life -lt "$kills" ] && [ $life -lt 3 ]; do
    start $life $life
    life=$((life + 1))
done
kill=0
while [ $kill -lt "$kills" ]; do
    writer=$((kill % 3))
    sleep "0.0$((kill * 37 % 7 + 1))"
    pid=$(cat "$work/pid.$writer") status=0
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || status=$?
    rm "$work/pid.$writer"
    if [ $status -ne 137 ]; then
        echo "writer $writer ended by itself, with exit code $status:" >&2
        cat "$work/log" >&2
        exit 1
    fi
    kill=$((kill + 1))
    if [ $life -lt "$kills" ]; then
        start $writer $life
        life=$((life + 1))
    fi
done
wait 2>/dev/null

"$guira" check "$table" --repair >"$work/check" || { cat "$work/check"; exit 1; }
tail -1 "$work/check"
"$guira" stat "$table" >"$work/stat"
awk '/^(recoveries|replays|torn rows|released locks|timeouts) /' "$work/stat"
"$guira" dump "$table" >"$work/dump"
# Every key holds the last value that was written down for it, or one that was stored just before its writer died.
for stored in "$work"/stored.*; do
    # A last line without an end was cut by the kill.
    head -n "$(wc -l <"$stored")" "$stored"
done | awk -F '\t' "$value"'
    { number = $2 + 0 }
    $2 != value(number) { print "TORN: " $0; torn++ }
    dumped { found[$1] = number; next }
    { told[$1] = number; stored++ }
    END {
        for (key in told) { keys++; if (!(key in found) || found[key] < told[key]) { print "LOST: " key; lost++ } }
        printf "%d kills; %d changes acknowledged, under %d keys; %d lost\n", '"$kill"', stored, keys, lost
        exit torn + lost > 0 || stored == 0
    }' dumped=1 "$work/dump" dumped=0 -
