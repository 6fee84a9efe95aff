# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: one module per noun, each with a click command called ``cli``."""
