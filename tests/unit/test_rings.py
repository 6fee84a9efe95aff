# SPDX-License-Identifier: LGPL-2.1-or-later
"""When the library that ``efuse run`` preloads makes libfuse take rings of io_uring.

A stand-in for libfuse 3.18 prints what it is told when a session is created, and whether the
handler of INIT leaves it the rings.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from efuse import locations

_LIBFUSE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define OVER_IO_URING (1UL << 31)
struct fuse_conn_info { uint64_t want; };
struct ops { void (*init)(void *userdata, struct fuse_conn_info *conn); };
struct fuse_session { struct ops ops; void *userdata; };
int ring_library(void);

void fuse_unset_feature_flag(struct fuse_conn_info *conn, uint64_t flag)
{
	conn->want &= ~flag;
}

struct fuse_session *fuse_session_new_versioned(void *args, const struct ops *op, size_t op_size,
						void *version, void *userdata)
{
	struct fuse_session *se = malloc(sizeof(*se));
	const char *value = getenv("FUSE_URING_ENABLE");

	se->ops = *op;
	se->userdata = userdata;
	printf("%s ", value ? value : "unset");
	return se;
}

static void loop(struct fuse_session *se)
{
	struct fuse_conn_info conn = { OVER_IO_URING | 1 };

	se->ops.init(se->userdata, &conn);
	printf("%s\\n", conn.want == (OVER_IO_URING | 1) ? "rings" : conn.want == 1 ? "none" : "wrong");
}

int fuse_session_loop(struct fuse_session *se)
{
	loop(se);
	return 0;
}

int fuse_session_loop_mt_312(struct fuse_session *se, void *config)
{
	loop(se);
	return USES_RINGS;
}

void fuse_loop_cfg_set_max_threads(void *config, unsigned int value)
{
}
"""
_DAEMON = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct args { int argc; char **argv; int allocated; };
void *fuse_session_new_versioned(void *args, const void *op, size_t op_size, void *version,
				void *userdata);
int fuse_session_loop(void *se);
int fuse_session_loop_mt_312(void *se, void *config);
void fuse_loop_cfg_set_max_threads(void *config, unsigned int value);

static void init(void *userdata, void *conn)
{
	if (strcmp(userdata, "mine"))
		abort();
}

int main(int argc, char **argv)
{
	void (*ops[3])(void *, void *) = { init };
	struct args args = { argc, argv, 0 };
	char config[64];
	void *se = fuse_session_new_versioned(&args, ops, sizeof(ops), NULL, "mine");

	if (getenv("FUSE_URING_ENABLE") && !getenv("OWN"))
		return 3;
	if (!strcmp(argv[1], "twice"))
		se = fuse_session_new_versioned(&args, ops, sizeof(ops), NULL, "mine");
	if (!strcmp(argv[1], "single"))
		return fuse_session_loop(se);
	if (!strcmp(argv[1], "limited"))
		fuse_loop_cfg_set_max_threads(config, 1);
	fuse_session_loop_mt_312(se, config);
	return 0;
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
    """Build the preloaded library, whose switch is a file here, and the stand-ins."""
    here = tmp_path_factory.mktemp("rings")
    libefuse = locations.data("libefuse")
    switch = f'-DSWITCH=\\"{here}/switch\\"'
    subprocess.run(
        [
            "make",
            "-s",
            "-C",
            libefuse,
            f"OUT={here}",
            f"CFLAGS=-O1 {switch}",
            f"{here}/libefuse-preload.so",
        ],
        check=True,
    )
    shared = ("-shared", "-fPIC")
    text = "int ring_library(void) { return 0; }"
    _compiled(here, "liburing.so.2", text, *shared, "-Wl,-soname,liburing.so.2")
    for name, rings in (("with", "ring_library()"), ("without", "0")):
        (here / name).mkdir()
        more = [str(here / "liburing.so.2")] if name == "with" else []
        flags = [*shared, f"-DUSES_RINGS={rings}", "-Wl,-soname,libfuse3.so.3", *more]
        _compiled(here, f"{name}/libfuse3.so.3", _LIBFUSE, *flags)
    _compiled(
        here, "daemon", _DAEMON, str(here / "with/libfuse3.so.3"), "-Wl,--allow-shlib-undefined"
    )
    return here


def _run(made: Path, *words: str, libfuse: str = "with", switch: str = "Y", **more: str) -> str:
    (made / "switch").write_text(f"{switch}\n")
    environment = {name: value for name, value in os.environ.items() if "FUSE" not in name}
    done = subprocess.run(
        [made / "daemon", *words],
        env=environment
        | {
            "LD_PRELOAD": str(made / "libefuse-preload.so"),
            "LD_LIBRARY_PATH": f"{made / libfuse}:{made}",
            "EFUSE_CHANNELS": "0",
        }
        | more,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_loop_with_several_threads_gets_rings(made: Path) -> None:
    assert _run(made, "several") == "1 rings"


@pytest.mark.parametrize("loop", ["single", "limited"])
def test_loop_that_may_not_have_a_thread_for_each_cpu_gets_no_rings(made: Path, loop: str) -> None:
    assert _run(made, loop) == "1 none"


@pytest.mark.parametrize("loop", ["single", "several"])
def test_daemon_that_asks_itself_is_left_alone(made: Path, loop: str) -> None:
    assert _run(made, loop, "-o", "ro,io_uring") == "unset rings"


@pytest.mark.parametrize("value", ["0", "1"])
def test_value_of_the_user_stays(made: Path, value: str) -> None:
    assert _run(made, "several", FUSE_URING_ENABLE=value, OWN="1") == f"{value} rings"


@pytest.mark.parametrize(("libfuse", "switch"), [("without", "Y"), ("with", "N")])
def test_rings_are_not_asked_for_where_they_are_missing(
    made: Path, libfuse: str, switch: str
) -> None:
    assert _run(made, "several", libfuse=libfuse, switch=switch) == "unset rings"


def test_second_session_of_a_process_does_not_ask(made: Path) -> None:
    assert _run(made, "twice") == "1 unset rings"
