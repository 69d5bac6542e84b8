#!/bin/busybox sh
# The first process of the virtual machine: two Soft-RoCE devices whose packets cross a pair of virtual Ethernet
# devices, a third one whose link is down, and the runs of the selected suites.
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
stty -F /dev/ttyS0 -onlcr
stty -F /dev/ttyS1 -onlcr
export PATH=/usr/bin:/bin:/tests/programs HOME=/tmp GUIRA_RDMA_REQUIRED=1 GUIRA_RDMA_LINK=veth0
# The processors are emulated: what takes long here does not hang.
export GUIRA_PATIENCE=5
while read -r module; do modprobe "$module"; done < /tests/modules

# Not the applet of the shell, which knows less.
ip=/usr/bin/ip
$ip link set lo up
$ip link add veth0 type veth peer name veth1
for i in 0 1; do
  $ip addr add 10.0.$i.1/24 dev veth$i
  $ip link set veth$i up
  /usr/bin/rdma link add rxe$i type rxe netdev veth$i
done
$ip link add down0 type veth peer name down1
/usr/bin/rdma link add rxe2 type rxe netdev down0

# Both addresses are this machine's, and the kernel would deliver packets between them itself. Rules send them through
# the Ethernet devices: what arrives there is looked up as local, what leaves is not.
for i in 0 1; do
  echo 1 > /proc/sys/net/ipv4/conf/veth$i/accept_local
  echo 0 > /proc/sys/net/ipv4/conf/veth$i/rp_filter
  $ip rule add pref 1$i iif veth$i lookup local
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
$ip route add 10.0.1.1 dev veth0 src 10.0.0.1 table 100
$ip route add 10.0.0.1 dev veth1 src 10.0.1.1 table 100
$ip rule add pref 20 to 10.0.1.1 lookup 100
$ip rule add pref 21 to 10.0.0.1 lookup 100
$ip rule add pref 100 lookup local
$ip rule del pref 0

# A card executes requests by itself: packets that arrive at a device are handled by a processor of its own, and not in
# the system call of the other side that sent them.
echo 1 > /sys/class/net/veth0/queues/rx-0/rps_cpus
echo 2 > /sys/class/net/veth1/queues/rx-0/rps_cpus

# The kernel adds the addresses of a device later.
for i in 0 1; do
  tries=0
  until grep -qs ffff:0a00 /sys/class/infiniband/rxe$i/ports/1/gids/* || [ $tries = 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
done

# Each line is a run: its suite, its environment, its program, and its arguments. For each, a line with the suite, the
# exit status, and the numbers of tests that passed and failed leaves over the second serial port.
while IFS='|' read -r suite environment program arguments; do
  echo "== $suite: $environment ${program##*/} $arguments"
  { env $environment "$program" $arguments; echo $? > /tmp/status; } < /dev/null 2>&1 | tee /tmp/log
  counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' /tmp/log | tail -n 1)
  echo "$suite $(cat /tmp/status) ${counts:-0 0}" > /dev/ttyS1
done < /tests/runs
echo end > /dev/ttyS1
sync
poweroff -f
