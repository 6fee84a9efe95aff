# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: one public module per subcommand, each with a click command ``cli``."""
