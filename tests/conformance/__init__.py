# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the test suites of other projects on ext4, on plain FUSE and on eFuse: ``make conformance``.

Each suite runs on each system. A test whose result differs from the result on ext4 needs a reason
in ``differences.toml``. ``docs/conformance.md`` shows the results.
"""
