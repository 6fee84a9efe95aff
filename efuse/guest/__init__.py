# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run commands in a QEMU guest with its own kernel and the host's files."""
