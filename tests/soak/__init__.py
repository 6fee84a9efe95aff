# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load eFuse for hours of emulated time, and find what grows."""
