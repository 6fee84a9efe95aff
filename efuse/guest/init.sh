#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# PID 1 of a guest. The guest's root is the host's root. $efuse_dir, from the kernel's command line,
# is the directory of this run. It contains command, fstab and dev, and optionally module and shell.
# virtio-serial ports: 1 and 2 carry the command's output, 3 carries reports about this run.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
dir=$efuse_dir
unset efuse_dir

# Start few programs here: under software emulation each takes a while.
mount -n -a -T "$dir/fstab"
cp -P "$dir"/dev/* /dev
ip link set lo up
echo efuse-guest >/proc/sys/kernel/hostname
ulimit -n 65536

# The ports appear one after another, and the number of their device varies.
tries=0
until compgen -G '/dev/vport*p3' >/dev/null || [ $((tries += 1)) -gt 300 ]; do
	sleep 0.1
done
exec 3>/dev/vport*p3
tell() { echo "$*" >&3; }
tell boot
tell taint "$(</proc/sys/kernel/tainted)"

run() {
	mkfifo /run/efuse/stdout /run/efuse/stderr
	cat /run/efuse/stdout >/dev/vport*p1 3>&- &
	out=$!
	cat /run/efuse/stderr >/dev/vport*p2 3>&- &
	err=$!
	setsid bash "$dir/command" </dev/null >/run/efuse/stdout 2>/run/efuse/stderr 3>&- &
	wait $!
	tell exit $?
	# Kill all processes that the command left behind, so that none holds the pipes open.
	for process in /proc/[0-9]*; do
		case ${process#/proc/} in
		1 | "$out" | "$err") ;;
		*) kill -KILL "${process#/proc/}" 2>/dev/null ;;
		esac
	done
	wait "$out" "$err"
}

shell() {
	stty -F /dev/ttyS1 sane clocal 115200
	# shellcheck disable=SC2046
	[ ! -s "$dir/size" ] || stty -F /dev/ttyS1 $(<"$dir/size")
	setsid -c bash "$dir/command" </dev/ttyS1 >/dev/ttyS1 2>&1 3>&- &
	wait $!
	tell exit $?
}

if [ -s "$dir/module" ] && ! reason=$(insmod "$(<"$dir/module")" 2>&1); then
	tell failed "$reason"
elif [ -e "$dir/shell" ]; then
	shell
else
	run
fi
dmesg >"$dir/dmesg"
tell taint "$(</proc/sys/kernel/tainted)"
sync
tell end
echo b >/proc/sysrq-trigger
sleep 60
