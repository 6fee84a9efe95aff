#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# To be sourced: functions for scripts that handle packages. The sourcing script defines say() and
# fail().

# Runs a command, and shows its output only if it fails.
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

# Prints "URI CODENAME" for each package source of this machine of the suite $1 and its updates.
sources() {
	apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
		sort -u | awk -v suite="$1" 'index($2, suite) == 1'
}

# Prints the URI from which this machine gets the suite $1.
mirror() {
	sources "$1" | awk -v suite="$1" '$2 == suite { print $1; exit }'
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo -- "$@"
	fi
}

# Only one user of apt at a time: apt itself waits for its own lock, and flock serialises these
# scripts.
apt() {
	as_root flock /var/lib/dpkg/lock-efuse env DEBIAN_FRONTEND=noninteractive \
		apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

updated=
apt_update() {
	[ -z "$updated" ] || return 0
	say "reading the package lists"
		# A third-party source that cannot be reached does not matter if the packages are
		# found.
	quietly apt update || say "some package lists could not be read; going on with the others"
	updated=1
}

# Prints the given packages that are not installed.
missing_packages() {
	local name
	for name in "$@"; do
		dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null | grep -q '^.i' || echo "$name"
	done
}

# Returns whether the package $1 is installed, or in a package source of this machine.
is_package() {
	[ -z "$(missing_packages "$1")" ] || apt-cache show "$1" >/dev/null 2>&1
}

# Prints the dependencies of the package $1: of the installed one if there is one.
depends() {
	if [ -z "$(missing_packages "$1")" ]; then
		dpkg-query -W -f='${Depends}\n' "$1"
	else
		apt-cache show "$1" 2>/dev/null | sed -n 's/^Depends: //p'
	fi
}

# Prints the package with the name prefix $1, such as linux-headers, that keeps the newest kernel of
# the series $2 and the flavour $3 installed. Its name has a series only if the release of Debian has
# kernels of several series.
series_package() {
	local name
	for name in "$1-$2-$3" "$1-$3"; do
		if depends "$name" | grep "\(^\|[ ,]\)$1-$2[.][^ ,]*-$3\b" >/dev/null; then
			echo "$name"
			return
		fi
	done
}

install_missing() {
	apt_update
	quietly apt install --no-install-recommends "$@" ||
		fail "packages could not be installed: $*" "apt-get install $*"
}

# Configures an apt, with its files in $1, for which no package is installed and which knows only
# the suites $3...: their packages if $2 is deb, their sources if it is deb-src. Packages that are
# in another suite are not taken from sid.
configure_apt() {
	local directory=$1 kind=$2 uri name
	local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	shift 2
	# shellcheck disable=SC1091
	uri=$(mirror "$(. /etc/os-release && echo "$VERSION_CODENAME")")
	[ -n "$uri" ] || fail "this machine has no package source of its own release" "look at /etc/apt"
	[ -e "$keyring" ] || fail "there is no $keyring" "apt-get install debian-archive-keyring"
	mkdir -p "$directory"/{lists/partial,archives/partial,parts}
	: >"$directory/status"
	for name in "$@"; do
		echo "$kind [signed-by=$keyring] $uri $name main"
	done >"$directory/sources.list"
	printf 'Package: *\nPin: release n=sid\nPin-Priority: 1\n' >"$directory/preferences"
	cat >"$directory/apt.conf" <<-EOF
		Dir::State::Lists "$directory/lists";
		Dir::State::status "$directory/status";
		Dir::Cache "$directory";
		Dir::Cache::Archives "$directory/archives";
		Dir::Etc::SourceList "$directory/sources.list";
		Dir::Etc::SourceParts "$directory/parts";
		Dir::Etc::Preferences "$directory/preferences";
		Dir::Etc::PreferencesParts "$directory/parts";
		APT::Architecture "amd64";
		APT::Install-Recommends "false";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		Acquire::Retries "3";
	EOF
	export APT_CONFIG=$directory/apt.conf
}
