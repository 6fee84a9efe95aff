#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# PID 1 of a guest. Its root is the host's root; $efuse_dir (of the kernel's command line) is the
# directory of this run, with: command, modules, headers, keep, and perhaps module and shell.
# Ports: 1 and 2 carry the command's output, 3 carries lines about what happens here.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=$efuse_dir
unset efuse_dir

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
	[ -e "/dev/${link%%:*}" ] || ln -s "${link#*:}" "/dev/${link%%:*}"
done
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock /run/user /run/efuse/host
mount --bind / /run/efuse/host
mount -t tmpfs -o mode=1777,size=75% tmp /tmp
# What the command needs of the host below /tmp or /run stays in sight.
while read -r path; do
	mkdir -p "$path"
	mount --bind "/run/efuse/host$path" "$path"
done <"$dir/keep"
umount /run/efuse/host
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t fusectl fusectl /sys/fs/fuse/connections
ip link set lo up
echo efuse-guest >/proc/sys/kernel/hostname
ulimit -n 65536

# The running kernel's modules and headers are wherever the host keeps them.
release=$(uname -r)
mount -t tmpfs -o mode=755 modules /lib/modules
if [ -s "$dir/modules" ]; then
	ln -s "$(cat "$dir/modules")" "/lib/modules/$release"
else
	mkdir "/lib/modules/$release"
	ln -s "$(cat "$dir/headers")" "/lib/modules/$release/build"
	ln -s build "/lib/modules/$release/source"
fi

# The ports appear one after the other; their device's number depends on the others.
tries=0
until compgen -G '/dev/vport*p3' >/dev/null || [ $((tries += 1)) -gt 300 ]; do
	sleep 0.1
done
exec 3>/dev/vport*p3
tell() { echo "$*" >&3; }
tell boot "$(cut -d' ' -f1 /proc/uptime)"
tell taint "$(cat /proc/sys/kernel/tainted)"

run() {
	mkfifo /run/efuse/stdout /run/efuse/stderr
	cat /run/efuse/stdout >/dev/vport*p1 3>&- &
	out=$!
	cat /run/efuse/stderr >/dev/vport*p2 3>&- &
	err=$!
	setsid bash "$dir/command" </dev/null >/run/efuse/stdout 2>/run/efuse/stderr 3>&- &
	wait $!
	tell exit $?
	# Nobody who was left behind may hold the pipes open.
	for process in /proc/[0-9]*; do
		case ${process#/proc/} in
		1 | "$out" | "$err") ;;
		*) kill -KILL "${process#/proc/}" 2>/dev/null ;;
		esac
	done
	wait "$out" "$err"
}

shell() {
	stty -F /dev/hvc0 sane
	# shellcheck disable=SC2046
	[ ! -s "$dir/size" ] || stty -F /dev/hvc0 $(cat "$dir/size")
	setsid -c bash "$dir/command" </dev/hvc0 >/dev/hvc0 2>&1 3>&- &
	wait $!
	tell exit $?
}

if [ -s "$dir/module" ] && ! reason=$(insmod "$(cat "$dir/module")" 2>&1); then
	tell failed "$reason"
elif [ -e "$dir/shell" ]; then
	shell
else
	run
fi
dmesg >"$dir/dmesg"
tell taint "$(cat /proc/sys/kernel/tainted)"
sync
tell end
echo b >/proc/sysrq-trigger
sleep 60
