#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# To be sourced: what scripts that deal with packages have in common.

# Runs a command of which only a failure is of interest.
quietly() {
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		tail -n 40 "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

# Prints "URI CODENAME" of each of this machine's package sources of the suite $1 and its updates.
sources() {
	apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
		sort -u | awk -v suite="$1" 'index($2, suite) == 1'
}

# Prints the URI that this machine has the suite $1 from.
mirror() {
	sources "$1" | awk -v suite="$1" '$2 == suite { print $1; exit }'
}
