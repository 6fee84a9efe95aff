# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel module: found sources, patched ``fs/fuse``, ``efuse.ko`` with BTF; loaded and unloaded."""
