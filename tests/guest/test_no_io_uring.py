# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test a kernel whose FUSE has no io_uring, like Linux before 6.14."""

from __future__ import annotations

import pytest

from efuse.bench import ring
from efuse.errors import NotSupportedError


@pytest.mark.parametrize("system", ring.OVER_RINGS)
def test_io_uring_on_a_kernel_without_it_fails(system: str) -> None:
    with (
        pytest.raises(NotSupportedError, match="FUSE of this kernel has no io_uring") as error,
        ring.enabled(system),
    ):
        pytest.fail("it was switched on")
    assert error.value.hint == "efuse bench --kernel 7"
