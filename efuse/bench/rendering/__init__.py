# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a report's JSON looks like: figures, a page, tables. Nothing here measures or mounts."""
