# SPDX-License-Identifier: LGPL-2.1-or-later
"""A model of how requests reach a daemon, on more CPUs than are available to measure on."""
