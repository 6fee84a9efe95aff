# SPDX-License-Identifier: LGPL-2.1-or-later
"""A model of the ways of requests to a daemon, on more CPUs than there are to measure on."""
