# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many threads the library that ``efuse run`` preloads takes a daemon to support.

A stand-in for libfuse prints what reaches it. A stand-in for libefuse's loop prints the number of
threads, and serves nothing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from efuse import locations

_LIBFUSE = """
#include <stdio.h>
void fuse_loop_cfg_set_max_threads(void *config, unsigned int value) { printf("set "); }
void fuse_loop_cfg_destroy(void *config) { printf("destroyed "); }
int fuse_session_loop_mt_312(void *se, void *config) { printf("looped "); return 0; }
"""
_LOOP = """
#include "session.h"
#include <stdio.h>
bool session_served(struct fuse_session *se, unsigned int max_workers, int *result)
{
	printf("%u ", max_workers);
	return false;
}
"""
_MODULE = """
#include <stdlib.h>
void fuse_loop_cfg_set_max_threads(void *config, unsigned int value);
void fuse_loop_cfg_destroy(void *config);
int fuse_session_loop_mt_312(void *se, void *config);
char configs[2];
int run(char **words)
{
	for (; *words; words++) {
		void *config = configs + ((*words)[1] - '0');

		if (**words == 's')
			fuse_loop_cfg_set_max_threads(config, strtoul(*words + 3, NULL, 10));
		else if (**words == 'd')
			fuse_loop_cfg_destroy(config);
		else
			fuse_session_loop_mt_312(NULL, config);
	}
	return 0;
}
"""
_PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
	int (*run)(char **);
	void *module = dlopen(argv[1], RTLD_NOW | (strcmp(argv[2], "own") ? RTLD_GLOBAL : RTLD_LOCAL));

	if (!module)
		return puts(dlerror());
	*(void **)&run = dlsym(module, "run");
	return run(argv + 3);
}
"""


def _compiled(directory: Path, name: str, text: str, *flags: str) -> Path:
    source = directory / f"{name}.c"
    source.write_text(text)
    out = directory / name
    subprocess.run(["gcc", "-w", "-o", out, source, *flags], check=True)
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("preload")
    libefuse = locations.data("libefuse")
    shared = ("-shared", "-fPIC")
    fuse = subprocess.check_output(["pkg-config", "--cflags", "fuse3"], text=True).split()
    preload = [str(libefuse / "preload.c"), f"-Wl,--version-script={libefuse / 'preload.map'}"]
    _compiled(here, "preload.so", _LOOP, *shared, *fuse, f"-I{libefuse}", *preload)
    library = _compiled(here, "libfuse3.so.3", _LIBFUSE, *shared, "-Wl,-soname,libfuse3.so.3")
    _compiled(here, "module.so", _MODULE, *shared, str(library))
    _compiled(here, "program", _PROGRAM)
    return here


def _run(made: Path, *words: str, scope: str = "own") -> str:
    done = subprocess.run(
        [made / "program", made / "module.so", scope, *words],
        env={**os.environ, "LD_PRELOAD": str(made / "preload.so"), "LD_LIBRARY_PATH": str(made)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("scope", ["own", "program"])
def test_functions_of_a_libfuse_that_a_module_loads_are_found(made: Path, scope: str) -> None:
    """As a module of Python does: libfuse is not among the libraries that the program searches."""
    words = ("s0=3", "l0", "d0")
    assert _run(made, *words, scope=scope) == "set 3 looped destroyed"


@pytest.mark.parametrize(
    ("value", "threads"),
    [(0, 1), (1, 1), (3, 3), (10, 0), (100_000, 100_000), (100_001, 0), (4_294_967_295, 0)],
)
def test_number_of_threads_is_that_of_libfuse(made: Path, value: int, threads: int) -> None:
    """The default, 10, does not tell how many threads a daemon supports."""
    assert _run(made, f"s0={value}", "l0") == f"set {threads} looped"


def test_each_configuration_has_its_own_number_of_threads(made: Path) -> None:
    assert _run(made, "s0=1", "s1=20", "l0", "l1") == "set set 1 looped 20 looped"


def test_configuration_at_the_address_of_one_that_is_gone_has_no_limit(made: Path) -> None:
    assert _run(made, "s0=1", "d0", "l0") == "set destroyed 0 looped"
