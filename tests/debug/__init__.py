# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest's tests in a kernel that checks itself, and the proof that its checks are heard."""
