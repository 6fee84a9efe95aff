# SPDX-License-Identifier: LGPL-2.1-or-later
"""The documents as a web site, which ``make docs`` builds without using the network.

Sphinx builds it, because the docstrings are in Sphinx's form and its search needs no server.
"""
