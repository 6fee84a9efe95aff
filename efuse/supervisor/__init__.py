# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run any FUSE daemon with its mounts on eFuse."""
