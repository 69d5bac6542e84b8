#!/bin/sh
# Kills writers of a table with SIGKILL, one after the other, at any moment, and sees that nothing they were told is
# stored is lost, and that nobody who goes on is held up.
#
# Usage: examples/kill-loop.sh [KILLS]      needs awk, and guira in PATH or as GUIRA=path/to/guira
set -eu
guira=${GUIRA:-guira} kills=${1:-100} writers='a b c'
table=shm://kill-loop-$$ work=$(mktemp -d)
trap 'kill -9 $(cat "$work"/pid.*) 2>/dev/null || true; wait; "$guira" destroy "$table" >/dev/null; rm -rf "$work"' EXIT

"$guira" create "$table" --capacity 10k --extent-bytes 64MiB

# Writer $1 in its life $2 stores ever larger numbers under 1,000 keys of its own, some with long values, and writes
# down what is stored.
start() {
    mkfifo "$work/records.$1.$2"
    awk -v writer="$1" -v life="$2" 'BEGIN {
        for (n = 0; ; n++) printf "%s-%d\t%015.0f%0*d\n", writer, n * 7919 % 1000, life * 1e9 + n, n % 5 ? 4 : 400, 0
    }' >"$work/records.$1.$2" &
    "$guira" load "$table" - --input tsv --acknowledge "$work/stored.$1" <"$work/records.$1.$2" >/dev/null &
    echo $! >"$work/pid.$1"
}
for writer in $writers; do start "$writer" 1; done

kill=0
while [ $kill -lt "$kills" ]; do
    for writer in $writers; do
        sleep "0.0$((kill * 37 % 7 + 1))"
        kill -9 "$(cat "$work/pid.$writer")"
        kill=$((kill + 1))
        start "$writer" $((kill + 1))
    done
done
for writer in $writers; do kill -9 "$(cat "$work/pid.$writer")"; done
wait 2>/dev/null

"$guira" check "$table" --repair >"$work/check" || { cat "$work/check"; exit 1; }
tail -1 "$work/check"
"$guira" stat "$table" >"$work/stat"
awk '/^(recoveries|replays|torn rows|released locks|timeouts) /' "$work/stat"
"$guira" dump "$table" >"$work/dump"
# Every key holds the last number that was written down for it, or one that was stored just before its writer died.
for writer in $writers; do
    # A last line without an end was cut by the kill.
    head -n "$(wc -l <"$work/stored.$writer")" "$work/stored.$writer"
done | awk -F '\t' '
    { number = substr($2, 1, 15) + 0 }
    NR == FNR { found[$1] = number; next }
    { told[$1] = number; stored++ }
    END {
        for (key in told) { keys++; if (!(key in found) || found[key] < told[key]) { print "LOST: " key; lost++ } }
        printf "%d kills; %d changes acknowledged, under %d keys; %d lost\n", '"$kill"', stored, keys, lost
        exit lost > 0 || stored == 0
    }' "$work/dump" -
