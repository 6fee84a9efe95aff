# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse bench``: compare workloads on plain FUSE, tuned FUSE and eFuse."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from efuse import bench, locations
from efuse.cli import _bench_compare, _bench_report
from efuse.cli._bench_progress import LineSink, progress
from efuse.cli._kernels import chosen, kernel_option
from efuse.cli._output import console
from efuse.control import module_version
from efuse.errors import ControlError, EfuseError, UsageError
from efuse.functions.running import CONTROL
from efuse.guest.run import INSIDE

__all__ = ["cli"]

_EFUSE = "from efuse.cli.main import main; main()"
_OTHERS = ", ".join(name for name in (*bench.METADATA, *bench.DATA) if name not in bench.DEFAULT)
_REQUESTS = (
    "scale-stat-N and scale-read-N with N = 1, 2, 4 ... 128 threads, "
    "scale (those with N up to twice the CPUs), skew"
)


def _words(choices: tuple[str, ...]) -> Any:
    """Return a callback that splits a list at its commas and checks the words; None: no words."""

    def split(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
        words = tuple(word for word in (value or "").split(",") if word)
        for word in words:
            if word not in choices:
                raise click.BadParameter(f"{word!r} is not one of {', '.join(choices)}")
        if not words and value is not None:
            raise click.BadParameter(f"give one or more of {', '.join(choices)}")
        return words

    return split


@click.group(invoke_without_command=True)
@click.option(
    "--workload",
    "workloads",
    default=",".join(bench.DEFAULT),
    show_default=True,
    callback=_words((*bench.WORKLOADS, bench.SCALE, *bench.STORAGE)),
    help=f"Workloads, separated by commas; also {_OTHERS}; and {_REQUESTS}; "
    f"or, in a run of their own, storage functions: {', '.join(bench.STORAGE)}.",
)
@click.option(
    "--daemon",
    type=click.Choice(bench.DAEMONS),
    help=f"Default: passthrough; for {bench.SCALE} and skew {bench.DAEMON}.",
)
@click.option(
    "--system",
    "systems",
    callback=_words(
        tuple(dict.fromkeys((*bench.SYSTEMS, *bench.ON_REQUEST, *bench.KNOWN, *bench.PLACES)))
    ),
    help=f"Systems, separated by commas. Default: {', '.join(bench.SYSTEMS)}; also "
    f"{', '.join(bench.ON_REQUEST)}. For {bench.SCALE} and skew: {', '.join(bench.KNOWN)}. "
    f"For storage functions, the places: {', '.join(bench.PLACES)}.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Rounds, in each of which every system is measured once.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="Size of the workloads; 1: full size.",
)
@click.option(
    "--clock",
    type=click.Choice(["time", "instructions"]),
    default="time",
    show_default=True,
    help="Quantity that the guest's clock counts.",
)
@click.option(
    "--lower",
    type=click.Choice(bench.LOWER),
    default=bench.LOWER[0],
    show_default=True,
    help="Storage of the lower file system: memory, or an emulated device with this profile.",
)
@kernel_option
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures into a JSON file.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the times of storage functions into a PNG file.",
)
@click.option(
    "--resume",
    "state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save each finished workload in this file, and skip the workloads that it contains.",
)
@click.pass_context
def cli(
    context: click.Context,
    /,
    kernel: str | None,
    json_file: Path | None,
    plot_file: Path | None,
    state: Path | None,
    **given: Any,
) -> None:
    """Run workloads on several systems in turn, verify the results, and compare.

    Runs on this machine if the module is loaded, else in a guest that it boots.

    \b
    efuse bench --workload stat,negative --rounds 3
    efuse bench --workload scan,lookup --clock instructions --plot places.png
    efuse bench --workload t1-single,t2-small --resume state.json --json report.json
    efuse bench --kernel 7 --workload scale --system fuse,fuse-io-uring --daemon passthrough_ll-sid
    """
    if context.invoked_subcommand is None:
        _run(bench.Settings(**given), kernel, json_file, plot_file, state)
        return
    for parameter in context.params:
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{context.invoked_subcommand} does not run workloads",
                hint=f"write the options after it: efuse bench {context.invoked_subcommand} --help",
            )


cli.add_command(_bench_compare.compare)
cli.add_command(_bench_report.report)


def _run(
    settings: bench.Settings,
    kernel: str | None,
    json_file: Path | None,
    plot_file: Path | None,
    state: Path | None,
) -> None:
    storage = bench.is_storage(settings.workloads)
    if plot_file is not None and not storage:
        raise UsageError("--plot draws only the workloads of storage functions")
    (bench.check_storage if storage else bench.check)(settings)
    here = _is_here() if storage else _is_loaded()
    if here and kernel is not None:
        raise UsageError(
            f"kernel {kernel} is not booted: no guest is, since the module is loaded here",
            hint="leave --kernel out, or efuse module unload",
        )
    report = _followed(settings, kernel, storage, here, state)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if plot_file is not None:
        bench.plot(report, plot_file)
    if storage:
        console().print(bench.storage_table(report))
    else:
        console().print(bench.table(report))
        for measures in bench.measure_tables(report):
            console().print()
            console().print(measures)
    if not all(result["verified"] for result in report["results"]):
        raise EfuseError(
            "a workload saw files that differ from the lower file system",
            hint="lines marked WRONG name the workload",
        )


def _is_loaded() -> bool:
    try:
        module_version()
    except ControlError:
        return False
    return True


def _is_here() -> bool:
    """Return whether csd.ko is loaded, or this is a guest that was booted for the benchmark."""
    return Path(CONTROL).exists() or os.environ.get(INSIDE) == "1"


def _followed(
    settings: bench.Settings, kernel: str | None, storage: bool, here: bool, state: Path | None
) -> dict[str, Any]:
    """Run the workloads that *state* does not have, and show the progress."""
    cpus = None if here else _guest_cpus(settings)
    settings = replace(settings, workloads=bench.expanded(settings.workloads, cpus))
    finished = bench.finished(state, asdict(settings))
    steps = (bench.storage_steps if storage else bench.steps)(settings)
    with progress({name: n for name, n in steps.items() if name not in finished}) as say:
        if here:
            return _run_here(settings, storage, state, say)
        return _run_in_guest(settings, kernel, state, say)


def _run_here(
    settings: bench.Settings, storage: bool, state: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    value = (bench.run_storage if storage else bench.run)(settings, say, state).json()
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain


def _guest_cpus(settings: bench.Settings) -> int:
    return 1 if settings.clock == "instructions" else 2


def _run_in_guest(
    settings: bench.Settings,
    kernel: str | None,
    state: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    from efuse.guest.run import Options, is_shared, run

    if state is not None and not is_shared(state):
        raise UsageError(
            f"a guest does not see {state}: it has a directory of its own there",
            hint="keep the state in another directory",
        )
    locations.make_directory(locations.cache())
    out = locations.cache() / f"bench-{os.getpid()}.json"
    # The table is printed by this process, not in the guest.
    words = ["sh", "-c", 'exec "$@" > /dev/null', "sh"]
    words += [sys.executable, "-c", _EFUSE, "bench", "--json", str(out)]
    words += ["--workload", ",".join(settings.workloads), "--rounds", str(settings.rounds)]
    if settings.systems:
        words += ["--system", ",".join(settings.systems)]
    if settings.daemon:
        words += ["--daemon", settings.daemon]
    words += ["--lower", settings.lower]
    words += ["--scale", str(settings.scale), "--clock", settings.clock]
    if state is not None:
        words += ["--resume", str(state.absolute())]
    options = Options(
        cpus=_guest_cpus(settings),
        icount=settings.clock == "instructions",
        kernel=chosen(kernel),
    )
    try:
        with LineSink(say) as lines:
            result = run(words, options, stderr=lines, say=lambda text: say(f"guest: {text}"))
        if not out.exists():
            raise (UsageError if result.status == UsageError.exit_code else EfuseError)(
                f"the benchmark failed in the guest: exit status {result.status}",
                hint="its output above gives the reason",
            )
        report: dict[str, Any] = json.loads(out.read_text())
        return report
    finally:
        out.unlink(missing_ok=True)
