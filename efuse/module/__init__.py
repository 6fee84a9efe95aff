# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel modules: prepare the source, build with BTF, install with DKMS, load and unload."""
