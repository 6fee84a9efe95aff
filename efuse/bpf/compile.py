# SPDX-License-Identifier: LGPL-2.1-or-later
"""C text to spec, by way of the specs that are shipped or cached by content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efuse import paths
from efuse.bpf.members import EFUSE_OPS, Interface
from efuse.bpf.spec import Spec
from efuse.errors import EfuseError

__all__ = ["Source", "builtin", "builtin_sources", "compile_sources", "compile_text", "store"]

# Raise it when what is made of the compiler's output changes: it voids the cache.
_VERSION = 4


@dataclass(frozen=True)
class Source:
    """A text and the name that errors give it."""

    name: str
    text: str


def builtin_sources() -> tuple[Source, ...]:
    """Return the built-in handlers' files, the maps' first."""
    directory = paths.data("bpf_programs")
    names = sorted((path.name for path in directory.glob("*.c")), key=lambda n: (n != "maps.c", n))
    return tuple(Source(name, (directory / name).read_text()) for name in names)


def builtin(*, use_shipped: bool = True) -> Spec:
    """Return the built-in handlers' spec: shipped with the package, cached, or compiled now.

    :param use_shipped: False to compile whatever is shipped or cached.
    :raises CompileError: it had to be compiled and could not.
    """
    return _builtin() if use_shipped else compile_sources(builtin_sources(), cached=False)


@functools.cache  # the package's own files: a process that mounts often reads them once
def _builtin() -> Spec:
    return compile_sources(builtin_sources())


def compile_text(
    text: str, name: str, *, interface: Interface = EFUSE_OPS, cached: bool = True
) -> Spec:
    """Return the spec of one text.

    :param text: C for BCC that defines one function per member it implements.
    :param name: what errors call the text, a file's name for example.
    :param interface: what the text implements.
    :param cached: False to compile even what is in the cache.
    :raises CompileError: it does not compile; the message has the first error and its line.
    :raises NotSupportedError: it has to be compiled and BCC is not installed.
    """
    return compile_sources((Source(name, text),), interface=interface, cached=cached)


def compile_sources(
    sources: Sequence[Source], *, interface: Interface = EFUSE_OPS, cached: bool = True
) -> Spec:
    """Return the spec of several files that make one text; see compile_text()."""
    digest = _digest(sources, interface)
    if cached:
        for directory in _spec_directories():
            path = directory / f"{digest}.json"
            if path.is_file():
                return _named(Spec.from_json(paths.check_private(path).read_text()), sources)
    from efuse.bpf.bcc import run  # what it needs is slow to import

    spec = run(sources, interface, _include_directories(interface), digest)
    store(spec, paths.cache() / "specs")
    return spec


def store(spec: Spec, directory: Path) -> Path:
    """Write *spec* into *directory* under the name by which it is found again; return its path."""
    return paths.write(directory / f"{spec.source_hash}.json", spec.to_json())


def _spec_directories() -> Iterable[Path]:
    with contextlib.suppress(EfuseError):  # a checkout carries none
        yield paths.data("specs")
    yield paths.cache() / "specs"


def _include_directories(interface: Interface) -> tuple[Path, ...]:
    return (
        paths.data(interface.data) / interface.include,
        paths.data(interface.uapi) / "include" / "uapi",
    )


def _named(spec: Spec, sources: Sequence[Source]) -> Spec:
    """Return the spec with the name that its text has this time."""
    if len(sources) > 1:
        return spec
    programs = {
        member: replace(
            program, lines=tuple(replace(line, file=sources[0].name) for line in program.lines)
        )
        for member, program in spec.programs.items()
    }
    return replace(spec, programs=programs)


def _digest(sources: Sequence[Source], interface: Interface) -> str:
    """SHA-256 of all that the compiler's result depends on.

    The name of a single text makes no difference: _named() puts it right.
    """
    parts = [str(_VERSION)]
    for directory in _include_directories(interface):
        parts += [path.read_text() for path in sorted(directory.rglob("*.h"))]
    for source in sources:
        parts += [source.name if len(sources) > 1 else "", source.text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
