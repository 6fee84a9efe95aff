# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program that tries operations as another user, in a process of its own."""

from __future__ import annotations

__all__ = ["ATTEMPT"]

ATTEMPT = """
import errno, os, sys
os.chdir(sys.argv[1])
def attempt(name, action):
    try:
        action()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""
"""The head of the program: it goes to the directory that is its argument, and defines attempt(),
which prints ``ok`` or the name of the error."""
