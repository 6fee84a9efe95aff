#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# To be sourced: functions that run tests/guest. The sourcing script defines in_guest(), which
# passes its arguments to pytest in a guest with the options "${shape[@]}".

# Options of a guest with two NUMA nodes.
nodes=(--nodes 2 --cpus 4)
shape=()

# memory_of_guests MOST [PYTEST ARGUMENTS]: print how many MiB each guest may have: at most MOST,
# and all guests together at most half of the available memory.
memory_of_guests() {
	awk -v most="$1" -v n="$(($# > 1 ? 1 : 2))" \
		'/^MemAvailable:/ { m = int($2 / 2048 / n); print (m > most ? most : m) }' /proc/meminfo
}

# What runs in a guest of its own before the first of the two guests: nothing, if the sourcing script
# does not define it.
before_the_first() { :; }

# Run all tests. Two guests share them: each takes the next test file that the other one has not
# taken (tests/guest/support/work_sharing.py). Before the other guest, one with two NUMA nodes runs
# the tests that need these. More than two guests at the same time would take several times as long
# on two processors: a virtual one that is not running keeps the locks that the others wait for.
all_in_guests() {
	local rest=(tests/guest --ignore=tests/guest/numa) status=0
	share=$(mktemp -d "${XDG_CACHE_HOME:-$HOME/.cache}/efuse/share.XXXXXX")
	# Process groups of their own, so that they can be ended as a whole. The output of the other
	# one is always shown.
	trap 'end_of_share' EXIT
	set -m
	(
		shape=("${nodes[@]}")
		in_guest tests/guest/numa || status=$?
		shape=()
		EFUSE_SHARE=$share/other in_guest "${rest[@]}" || status=$?
		exit "$status"
	) >"$share/.printed" 2>&1 </dev/null &
	groups+=("-$!")
	(
		before_the_first || status=$?
		EFUSE_SHARE=$share/one in_guest "${rest[@]}" || status=$?
		exit "$status"
	) </dev/null &
	groups+=("-$!")
	set +m
	wait "${groups[1]#-}" || status=$?
	wait "${groups[0]#-}" || status=$?
	groups=()
	return "$status"
}

groups=()

end_of_share() {
	[ ${#groups[@]} -eq 0 ] || kill -- "${groups[@]}" 2>/dev/null || true
	echo "the guest with two nodes, and the other one of those that shared the tests:"
	cat "$share/.printed"
	rm -rf "$share"
}

# run_in_guests [PYTEST ARGUMENTS]: run all tests in two guests, or pytest with the arguments in
# one.
run_in_guests() {
	if [ $# -eq 0 ]; then
		all_in_guests
	else
		[[ "$*" != *tests/guest/numa* ]] || shape=("${nodes[@]}")
		in_guest "$@"
	fi
}
