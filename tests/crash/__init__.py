# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replay prefixes of the block writes below a mount, and look for what fsync(2) acknowledged."""
