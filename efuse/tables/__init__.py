# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables that ``efuse stat`` and ``efuse top`` share: columns, rows and layout. Pure values."""
