# SPDX-License-Identifier: LGPL-2.1-or-later
"""Access control lists of the lower file system, through a pass-through on plain FUSE."""

from __future__ import annotations

from typing import Any

import pytest

from tests import access_lists

_OPTIONS = {
    "default_permissions": ("default_permissions", "allow_other"),
    "by_the_lower_file_system": ("allow_other",),
}


@pytest.fixture(params=_OPTIONS)
def shown(request: pytest.FixtureRequest, served: Any) -> Any:
    return served(options=_OPTIONS[request.param])


def test_access_equals_access_to_the_lower_files(shown: Any) -> None:
    access_lists.random_lists_hold(shown.path, shown.source)


def test_default_acls_are_inherited(shown: Any) -> None:
    access_lists.default_lists_are_inherited(shown.path, shown.source)


def test_setting_an_acl_clears_set_gid(shown: Any) -> None:
    access_lists.set_gid_is_lost(shown.path, shown.source)
