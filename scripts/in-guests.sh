#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# To be sourced: how tests/guest is run. The script has in_guest(), which gives its arguments to
# pytest in a guest that has "${shape[@]}".

# For a guest with two NUMA nodes.
nodes=(--nodes 2 --cpus 4)
shape=()

# memory_of_guests MOST [PYTEST ARGUMENTS]: how many MiB each guest may have; not more than MOST, nor
# all of them more than half of what this machine has to spare. EFUSE_GUESTS: how many run at a time,
# if there are others than these.
memory_of_guests() {
	awk -v most="$1" -v n="${EFUSE_GUESTS:-$(($# > 1 ? 1 : 2))}" \
		'/^MemAvailable:/ { m = int($2 / 2048 / n); print (m > most ? most : m) }' /proc/meminfo
}

# All of them. Each guest takes the next file that the other one has not (tests/guest/share.py).
# Before one of them there is a guest with two NUMA nodes, for what needs that.
all_in_guests() {
	local rest=(tests/guest --ignore=tests/guest/numa) status=0
	share=$(mktemp -d "${XDG_CACHE_HOME:-$HOME/.cache}/efuse/share.XXXXXX")
	# A process group of its own, which ends as a whole. What it has said is shown however this ends.
	trap 'kill -- "-$beside" 2>/dev/null || true; end_of_share' EXIT
	set -m
	(
		shape=("${nodes[@]}")
		in_guest tests/guest/numa || status=$?
		shape=()
		EFUSE_SHARE=$share/other in_guest "${rest[@]}" || status=$?
		exit "$status"
	) >"$share/.said" 2>&1 </dev/null &
	beside=$!
	set +m
	EFUSE_SHARE=$share/one in_guest "${rest[@]}" || status=$?
	wait "$beside" || status=$?
	return "$status"
}

end_of_share() {
	echo "the guest with two nodes, and the other one of those that shared the tests:"
	cat "$share/.said"
	rm -rf "$share"
}

# run_in_guests [PYTEST ARGUMENTS]: all tests in two guests; what the arguments say in one.
run_in_guests() {
	if [ $# -eq 0 ]; then
		all_in_guests
	else
		[[ "$*" != *tests/guest/numa* ]] || shape=("${nodes[@]}")
		in_guest "$@"
	fi
}
