# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is closed at the end of a ``with``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing(abc.ABC):
    """A context manager out of ``close()``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give up what is held. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
