# SPDX-License-Identifier: LGPL-2.1-or-later
"""Render the JSON of reports as figures, a page, and tables. Nothing here measures or mounts."""
