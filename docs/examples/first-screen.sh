#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# The README's first screen: first-screen.sh SOURCE MOUNTPOINT, as root, with the module loaded.
source=$1 mountpoint=$2
PS4='# '
TIMEFORMAT='%R s'
set -x
efuse mount passthrough "$source" "$mountpoint" --plain
time find "$mountpoint" -size +10k | wc -l
umount "$mountpoint"
efuse mount passthrough "$source" "$mountpoint" --consistency exclusive
find "$mountpoint" -size +10k | wc -l
time find "$mountpoint" -size +10k | wc -l
efuse stat "$mountpoint"
umount "$mountpoint"
