#!/bin/busybox sh
# YCSB over RDMA: a node on one device with a table that grows, three workloads through the other, and a check of it.
url='rdma://10.0.1.1:7711?dev=rxe0'
passed=0
failed=0

# Runs a command, and counts it as a test.
run() {
  echo "+ $*"
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

guira serve --rdma rxe1 --listen 10.0.1.1:7711 --insecure --no-audit --capacity 500 --max-capacity 100k --entry fixed:8:64 > /tmp/serve.log &
node=$!
tries=0
until grep -q 10.0.1.1:7711 /tmp/serve.log || [ $tries = 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
cat /tmp/serve.log

load='--records 5k --operations 20k --threads 2 --processes 2 --verify --keep'
run guira ycsb "$url" --workload a $load --into-existing
run guira ycsb "$url" --workload b $load --no-load
run guira ycsb "$url" --workload c $load --no-load
run guira check "$url"

kill -TERM $node
wait $node
echo "test result: the node ended with $?. $passed passed; $failed failed; end"
[ $failed = 0 ] && [ $passed = 4 ]
