# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel module: its source, ``efuse.ko`` with BTF, DKMS; loading and unloading it."""
