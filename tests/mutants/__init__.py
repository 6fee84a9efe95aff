# SPDX-License-Identifier: LGPL-2.1-or-later
"""Broken builds of the module, each of which the guest's tests must notice."""
