# SPDX-License-Identifier: LGPL-2.1-or-later
"""Base class of objects that a ``with`` statement closes."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing(abc.ABC):
    """A context manager that calls ``close()`` when the ``with`` block ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources. Further calls do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
