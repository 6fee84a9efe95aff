# SPDX-License-Identifier: LGPL-2.1-or-later
"""The documents as a site of web pages, which ``make docs`` builds without a network.

Built by Sphinx: the docstrings are in its form, so it reads the reference out of them itself, and
its search works where no server is.
"""
