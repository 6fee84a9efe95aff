# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the guest's tests in a kernel that checks itself, and prove that its checks are noticed."""
