# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs on mounts whose daemons are killed again and again: scripts/withstand."""
