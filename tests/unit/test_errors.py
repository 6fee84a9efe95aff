# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import errno
import inspect

import pytest

from efuse import errors


def _classes() -> list[type[errors.EfuseError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in found if issubclass(value, errors.EfuseError)]


def test_all_is_sorted_and_complete() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    assert {c.__name__ for c in _classes()} | {"reason"} == set(errors.__all__)


@pytest.mark.parametrize("error", _classes(), ids=lambda error: error.__name__)
def test_error_keeps_its_hint(error: type[errors.EfuseError]) -> None:
    value = error("it failed", hint="something else")
    assert str(value) == "it failed"
    assert value.hint == "something else"
    assert error("it failed").hint is None


def test_exit_code_tells_failure_usage_error_and_not_supported() -> None:
    for error in _classes():
        unsupported = issubclass(error, errors.NotSupportedError)
        usage = issubclass(error, errors.UsageError)
        assert error.exit_code == (3 if unsupported else 2 if usage else 1), error


def test_usage_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no such mode"):
        raise errors.UsageError("no such mode")


@pytest.mark.parametrize("given", [errno.ENOENT, -errno.ENOENT, OSError(errno.ENOENT, "")])
def test_reason_names_the_errno(given: int | OSError) -> None:
    assert errors.reason(given) == "No such file or directory (ENOENT)"


def test_reason_of_an_unknown_errno() -> None:
    assert "errno 4095" in errors.reason(4095)


def test_reason_without_an_errno_is_the_text() -> None:
    assert errors.reason(OSError("something")) == "something"


@pytest.mark.parametrize("error", [errors.VerifierError, errors.CompileError])
def test_error_keeps_its_log(error: type[errors.VerifierError]) -> None:
    assert error("refused", log="line 1\nline 2").log == "line 1\nline 2"
