# SPDX-License-Identifier: LGPL-2.1-or-later
"""Boot a kernel in QEMU over the host's own file system and run a command there."""
