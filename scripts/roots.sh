# SPDX-License-Identifier: LGPL-2.1-or-later
#
# To be sourced, after packages.sh: functions for scripts that use a root directory with a release of
# Debian of its own. The sourcing script defines say() and fail().

# Runs a command in the root $1. Maintainer scripts start no services and build no initramfs.
inside() {
	chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive INITRD=No "${@:2}"
}

install_in() {
	quietly inside "$1" apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends "${@:2}"
}

own_release() {
	# shellcheck disable=SC1091
	(. /etc/os-release && echo "$VERSION_CODENAME")
}

# Prints the URI from which this machine gets its own release, and so other releases, too.
own_mirror() {
	mirror "$(own_release)"
}

# Prints, as lines of a sources.list, this machine's package sources of its own release, its updates
# and its security, with the suite $1 instead.
sources_for() {
	local own
	own=$(own_release)
	sources "$own" | sed "s/ $own/ $1/; s/.*/deb & main/"
}

# Makes a root with only the essential packages of Debian's suite $1 in the empty directory $2.
bare_root() {
	local uri
	command -v debootstrap >/dev/null ||
		fail "no root can be made: debootstrap not found" "apt-get install debootstrap"
	uri=$(own_mirror)
	[ -n "$uri" ] || fail "this machine has no package source of its own release" "look at /etc/apt"
	chmod 755 "$2"
	quietly debootstrap --variant=minbase "$1" "$2" "$uri" ||
		fail "debootstrap failed" "look at the network and the package sources"
	printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
	chmod 755 "$2/usr/sbin/policy-rc.d"
	# Take over this machine's setting for outdated lists: its mirror may be a copy of a past day.
	apt-config dump Acquire::Check-Valid-Until >"$2/etc/apt/apt.conf.d/90valid"
}
