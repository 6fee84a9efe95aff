# SPDX-License-Identifier: LGPL-2.1-or-later
"""FUSE daemons that other people wrote, as Debian has them, plain and under ``efuse run``.

Each does the same work on plain FUSE and on eFuse, without any option. What the work sees has to be
the same, and the requests that reach the daemon are counted.
"""
