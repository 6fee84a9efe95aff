# SPDX-License-Identifier: LGPL-2.1-or-later
"""Broken builds of the modules; the guest's tests must notice each."""
