#!/usr/bin/env bash
# Boots Debian's kernel with Soft-RoCE under QEMU's emulation of a processor: neither hardware nor modules nor KVM of this
# host are needed.
#
#   vm.sh DIRECTORY INIT PROGRAM...
#
# Downloads stay in DIRECTORY. The machine has a file system in memory with the script INIT as its first process, the
# PROGRAMs in /tests/programs with the libraries that they load, and DIRECTORY/runs as /tests/runs. Its console is shown,
# and what it writes to its second serial port is in DIRECTORY/status. Exit status 77: this host cannot do it.
set -euo pipefail
directory=$1 init=$2
shift 2
unavailable() { echo "not available: $1"; exit 77; }

# The first is for a CRC-32 that Soft-RoCE of Linux 6.1 asks for without naming its module.
modules="crc32_generic rdma_rxe ib_uverbs veth sch_netem"
packages="qemu-system-x86 busybox-static kmod iproute2 ibverbs-providers libibverbs1"
[ "$(uname -m)" = x86_64 ] || unavailable "the virtual machine is an x86-64, and this host is not"
command -v dpkg-query > /dev/null || unavailable "it needs the Debian packages $packages"
missing=
for package in $packages; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed || missing="$missing $package"
done
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || unavailable "run: sudo apt-get install --no-install-recommends$missing"
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $missing \
    || unavailable "apt-get cannot install$missing"
fi
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$directory"
cd "$directory"

# The kernel is unpacked, and nothing of it is installed. The folder gets its name when it is complete.
if [ ! -d kernel ]; then
  image=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-\)/\1/p' | head -n 1)
  [ -n "$image" ] || unavailable "the package lists have no linux-image-amd64 (run: apt-get update)"
  apt-get download --quiet "$image" || unavailable "$image cannot be downloaded"
  rm -rf kernel.tmp
  dpkg --extract "$image"_*.deb kernel.tmp
  rm "$image"_*.deb
  depmod -b "$PWD/kernel.tmp" "$(ls kernel.tmp/lib/modules)"
  mv kernel.tmp kernel
fi
version=$(ls kernel/lib/modules)

# Adds the file $1 under the path $2, and the libraries that it loads.
add() {
  install -D -m 755 "$1" "root$2"
  # A program that is linked statically has none, and ldd fails.
  { ldd "$1" 2> /dev/null || true; } | sed -n 's|^[^/]*\(/[^ ]*\) .*|\1|p' | while read -r library; do
    [ -e "root$library" ] || install -D -m 755 "$library" "root$library"
  done
}
rm -rf root status
mkdir -p root/dev root/proc root/sys root/tmp root/run root/etc/libibverbs.d root/tests
add "$(command -v busybox)" /bin/busybox
for program in ip rdma tc; do add "$(command -v $program)" /usr/bin/$program; done
for library in /usr/lib/x86_64-linux-gnu/libibverbs.so.1 /usr/lib/x86_64-linux-gnu/libibverbs/librxe-*; do
  add "$library" "$library"
done
echo "driver rxe" > root/etc/libibverbs.d/rxe.driver
for module in $modules; do
  # A module that the kernel contains has no file.
  modprobe -d "$PWD/kernel" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  echo "$module" >> root/tests/modules
done | sort -u | while read -r file; do install -D "$file" "root/${file#"$PWD/kernel/"}"; done
cp kernel/lib/modules/"$version"/modules.{order,builtin,builtin.modinfo} "root/lib/modules/$version/"
depmod -b "$PWD/root" "$version"
for program in "$@"; do add "$program" "/tests/programs/$(basename "$program")"; done
cp runs root/tests/runs
install -m 755 "$init" root/init
(cd root && find . | busybox cpio -o -H newc -R 0:0) > initrd.cpio

# 3 GiB hold the programs twice, as an archive and unpacked, and memory that tests lock. With the features erms and fsrm
# the kernel would copy memory by an instruction that QEMU executes byte by byte: torn words.
exec qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 3072 -nodefaults -display none -no-reboot \
  -append "console=ttyS0 quiet panic=-1 mitigations=off" -serial stdio -serial file:status \
  -kernel "kernel/boot/vmlinuz-$version" -initrd initrd.cpio
