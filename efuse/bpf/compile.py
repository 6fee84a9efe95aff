# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile C text to a spec, or find the spec among those shipped or cached."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from efuse import locations
from efuse.bpf.members import EFUSE_OPS, Interface
from efuse.bpf.spec import Source, Spec
from efuse.errors import EfuseError

__all__ = ["builtin", "builtin_sources", "compile_text", "store"]

# Increase it when the conversion of the compiler's output changes. It invalidates the cache.
_VERSION = 4
_MAX_SPECS = 1024


def builtin_sources() -> tuple[Source, ...]:
    """Return the files of the built-in handlers, ``maps.c`` first."""
    directory = locations.data("bpf_programs")
    names = sorted((path.name for path in directory.glob("*.c")), key=lambda n: (n != "maps.c", n))
    return tuple(Source(name, (directory / name).read_text()) for name in names)


def builtin(*, use_shipped: bool = True) -> Spec:
    """Return the spec of the built-in handlers: shipped with the package, cached, or compiled now.

    :param use_shipped: False to compile even if a shipped or cached spec exists.
    :raises CompileError: compiling was necessary and failed.
    """
    return _builtin() if use_shipped else compile_sources(builtin_sources(), cached=False)


@functools.cache  # the files do not change: a process that mounts often reads them once
def _builtin() -> Spec:
    return compile_sources(builtin_sources())


def compile_text(
    text: str, name: str, *, interface: Interface = EFUSE_OPS, cached: bool = True
) -> Spec:
    """Return the spec of one text.

    :param text: C for BCC, with one function for each member that it implements.
    :param name: name of the text in error messages, for example a file name.
    :param interface: the interface that the text implements.
    :param cached: False to compile even if a cached spec exists.
    :raises CompileError: the text does not compile; the message has the first error and its line.
    :raises NotSupportedError: compiling is necessary and BCC is not installed.
    """
    return compile_sources((Source(name, text),), interface=interface, cached=cached)


def compile_sources(
    sources: Sequence[Source], *, interface: Interface = EFUSE_OPS, cached: bool = True
) -> Spec:
    """Return the spec of several files that are compiled as one text; see `compile_text`."""
    digest = _digest(sources, interface)
    if cached:
        for directory in _spec_directories():
            with contextlib.suppress(FileNotFoundError):
                text = locations.read_private(directory / f"{digest}.json")
                return _named(Spec.from_json(text), sources)
    from efuse.bpf.bcc import run  # imported here because it is rarely needed

    spec = run(sources, interface, _include_directories(interface), digest)
    stored = store(spec, locations.cache() / "specs")
    locations.remove_oldest(stored.parent, "*.json", _MAX_SPECS)
    return spec


def store(spec: Spec, directory: Path) -> Path:
    """Write *spec* into *directory*, where `compile_sources` finds it by hash. Return the path."""
    return locations.write(directory / f"{spec.source_hash}.json", spec.to_json())


def _spec_directories() -> Iterable[Path]:
    with contextlib.suppress(EfuseError):  # a checkout has no compiled specs
        yield locations.data("specs")
    yield locations.cache() / "specs"


def _include_directories(interface: Interface) -> tuple[Path, ...]:
    return (
        locations.data(interface.data) / interface.include,
        locations.data(interface.uapi) / "include" / "uapi",
    )


def _named(spec: Spec, sources: Sequence[Source]) -> Spec:
    """Return the spec with the name of the text that was given in this call."""
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
    """Return the SHA-256 of everything that the compiler's result depends on.

    The name of a single text is left out: `_named` sets it in the result.
    """
    parts = [str(_VERSION)]
    for directory in _include_directories(interface):
        parts += [path.read_text() for path in sorted(directory.rglob("*.h"))]
    for source in sources:
        parts += [source.name if len(sources) > 1 else "", source.text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
