# SPDX-License-Identifier: LGPL-2.1-or-later
"""List all metrics: name, labels, and the fields of `efuse.stats` that give the values.

Pure values: nothing here reads a file, or needs a package for Prometheus.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from efuse.stats import REASONS

__all__ = ["METRICS", "Kind", "Metric", "Needs", "Scope"]


class Kind(enum.Enum):
    """Metric type of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"
    SUMMARY = "summary"


class Scope(enum.Enum):
    """The kind of thing that a metric has one series for."""

    ALL = "all"
    MOUNT = "mount"
    OPCODE = "opcode"
    PATH = "path"
    CHANNEL = "channel"
    MAP = "map"
    PLAIN = "plain"
    PLAIN_OPCODE = "plain_opcode"
    DEVICE = "device"
    DEVICE_MOUNT = "device_mount"
    SERVICE = "service"
    SERVICE_MOUNT = "service_mount"

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that tell the things of this kind apart."""
        return _LABELS[self]


_MOUNT = ("connection", "mountpoint")

_LABELS: Mapping[Scope, tuple[str, ...]] = {
    Scope.ALL: (),
    Scope.MOUNT: _MOUNT,
    Scope.OPCODE: (*_MOUNT, "opcode"),
    Scope.PATH: (*_MOUNT, "path"),
    Scope.CHANNEL: (*_MOUNT, "cpu", "node"),
    Scope.MAP: (*_MOUNT, "map"),
    Scope.PLAIN: _MOUNT,
    Scope.PLAIN_OPCODE: (*_MOUNT, "opcode"),
    Scope.DEVICE: ("device",),
    Scope.DEVICE_MOUNT: ("device", "mountpoint"),
    Scope.SERVICE: (),
    Scope.SERVICE_MOUNT: ("name", "mountpoint"),
}


class Needs(enum.Enum):
    """Option of the exporter that a metric needs."""

    NOTHING = ""
    TIMES = "--times"
    MAPS = "--maps"
    PLAIN = "--plain"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    :ivar name: name in Prometheus, without the suffixes ``_bucket``, ``_sum`` and ``_count`` of
        histograms and summaries.
    :ivar kind: metric type.
    :ivar scope: kind of thing that it has one series for.
    :ivar doc: short description.
    :ivar fields: fields of the samples in `efuse.stats`, by their role: a value of *label*, a label
        of an info metric, ``sum``, ``count`` or ``classes``. The key is empty for a plain value.
        Fields in nanoseconds are exported in seconds.
    :ivar label: label whose values come from different fields of one sample.
    :ivar needs: option of the exporter that it needs.
    """

    name: str
    kind: Kind
    scope: Scope
    doc: str
    fields: Mapping[str, str]
    label: str | None = None
    needs: Needs = Needs.NOTHING

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels. For an info metric, they include the labels for its fields."""
        told = tuple(self.fields) if self.kind is Kind.INFO else ()
        own = (self.label,) if self.label is not None else ()
        return (*self.scope.labels, *own, *told)


def _counter(name: str, scope: Scope, field: str, doc: str, needs: Needs = Needs.NOTHING) -> Metric:
    return Metric(f"efuse_{name}_total", Kind.COUNTER, scope, doc, {"": field}, needs=needs)


def _gauge(name: str, scope: Scope, field: str, doc: str, needs: Needs = Needs.NOTHING) -> Metric:
    return Metric(f"efuse_{name}", Kind.GAUGE, scope, doc, {"": field}, needs=needs)


def _summary(name: str, scope: Scope, what: str, doc: str) -> Metric:
    fields = {"sum": f"{what}_ns", "count": f"{what}_timed"}
    return Metric(f"efuse_{name}", Kind.SUMMARY, scope, doc, fields, needs=Needs.TIMES)


_MOUNTS = (
    Metric(
        "efuse_mount_info",
        Kind.INFO,
        Scope.MOUNT,
        "State of the mount as labels; the value is always 1",
        {name: name for name in ("state", "ops", "consistency", "exit_info", "daemon")},
    ),
    _counter(
        "program_sets_attached",
        Scope.MOUNT,
        "enable_seq",
        "Program sets attached since the mount; a replacement counts",
    ),
    _gauge(
        "recovery_seconds",
        Scope.MOUNT,
        "recovery",
        "How long callers wait for a successor of a daemon that has died; 0: not at all",
    ),
    _counter("successors", Scope.MOUNT, "incarnation", "Daemons that have taken the mount over"),
    _gauge(
        "last_end_timestamp_seconds",
        Scope.MOUNT,
        "last_end.time",
        "When the last daemon died that left the mount, since 1970; 0: none has",
    ),
    *(
        _gauge(f"last_end_{name}", Scope.MOUNT, f"last_end.{field}", doc)
        for name, field, doc in (
            ("lost_requests", "lost", "Requests that this daemon had not answered"),
            ("resent_requests", "resent", "Requests that were sent again after its end"),
            ("settled_requests", "settled", "Requests that were found to be carried out"),
            ("failed_requests", "failed", "Requests that have failed because of its end"),
            ("gap_seconds", "gap_ns", "How long no daemon served after its end"),
        )
    ),
    _gauge("waiting_requests", Scope.MOUNT, "waiting", "Requests in flight at the daemon"),
    _gauge(
        "io_uring", Scope.MOUNT, "io_uring", "1 if the daemon receives its requests by io_uring"
    ),
    _counter("learned_values", Scope.MOUNT, "learned", "Values handed to the maps since the mount"),
    _counter("map_full_values", Scope.MOUNT, "map_full", "Values that the maps did not accept"),
    _counter(
        "invalid_verdicts",
        Scope.MOUNT,
        "invalid_verdicts",
        "Verdicts of handlers that have no meaning",
    ),
)

_OPCODES = (
    _counter(
        "requests",
        Scope.OPCODE,
        "requests",
        "Requests that the kernel made, answered in the kernel or sent",
    ),
    _counter("hits", Scope.OPCODE, "hits", "Requests answered in the kernel"),
    _counter(
        "refused",
        Scope.OPCODE,
        "refused",
        "Requests failed in the kernel by a handler's negative verdict",
    ),
    _counter("daemon_requests", Scope.OPCODE, "daemon", "Requests sent to the daemon"),
    _counter(
        "daemon_errors", Scope.OPCODE, "errors", "Requests answered by the daemon with an error"
    ),
    Metric(
        "efuse_passed_total",
        Kind.COUNTER,
        Scope.OPCODE,
        "Requests sent to the daemon, by the reason why the kernel did not answer",
        {reason: reason for reason in REASONS},
        label="reason",
    ),
    _summary(
        "hit_duration_seconds", Scope.OPCODE, "hit", "Time of the kernel answers that were timed"
    ),
    _summary(
        "daemon_duration_seconds",
        Scope.OPCODE,
        "daemon",
        "Time of the daemon answers that were timed",
    ),
)

_PATHS = (
    _counter("path_chosen", Scope.PATH, "chosen", "READs and WRITEs meant to take the path"),
    _counter("path_requests", Scope.PATH, "requests", "READs and WRITEs answered on the path"),
    _counter(
        "path_partial",
        Scope.PATH,
        "partial",
        "READs and WRITEs answered on the path except for parts that were missing there",
    ),
    _counter("path_bytes", Scope.PATH, "bytes", "Bytes read or written on the path"),
    _counter(
        "path_probes",
        Scope.PATH,
        "probes",
        "READs and WRITEs meant to take the path only to measure its time",
    ),
    _counter(
        "path_predicted_requests",
        Scope.PATH,
        "predicted",
        "READs and WRITEs whose time was predicted and then measured",
    ),
    _counter(
        "path_predicted_seconds",
        Scope.PATH,
        "predicted_ns",
        "Time that READs and WRITEs were predicted to take",
    ),
    _counter(
        "path_actual_seconds", Scope.PATH, "actual_ns", "Time that the same READs and WRITEs took"
    ),
    _counter(
        "path_prediction_error_seconds",
        Scope.PATH,
        "error_ns",
        "Total of the differences between predicted and actual time of the path",
    ),
    Metric(
        "efuse_path_duration_seconds",
        Kind.HISTOGRAM,
        Scope.PATH,
        "Time of the READs and WRITEs that were timed",
        {"sum": "ns", "classes": "latency"},
        needs=Needs.TIMES,
    ),
)

_CHANNELS = (
    _gauge("channel_slots", Scope.CHANNEL, "slots", "Slots of the CPU's channel; 0: it has none"),
    _gauge("channel_depth", Scope.CHANNEL, "depth", "Requests sent, and not read by the daemon"),
    _gauge("channel_in_flight", Scope.CHANNEL, "in_flight", "Requests in the channel's slots"),
    _gauge(
        "channel_service_seconds",
        Scope.CHANNEL,
        "service_ns",
        "How long the daemon had a request in a slot, a moving mean",
    ),
    _gauge(
        "channel_polling", Scope.CHANNEL, "polling", "Workers of the channel that poll for requests"
    ),
    _gauge("channel_sleeping", Scope.CHANNEL, "sleeping", "Workers of the channel that sleep"),
    _counter(
        "channel_sent", Scope.CHANNEL, "counters.sent", "Requests put into the queue of the CPU"
    ),
    _counter(
        "channel_stolen",
        Scope.CHANNEL,
        "counters.stolen",
        "Requests from the queue of the CPU that were read on another CPU",
    ),
    _counter(
        "channel_poll_hits",
        Scope.CHANNEL,
        "counters.poll_hits",
        "A worker polled for a request before it would sleep, and found one",
    ),
    _counter(
        "channel_poll_misses",
        Scope.CHANNEL,
        "counters.poll_misses",
        "A worker polled, and found none in time",
    ),
    _counter(
        "channel_spin_hits",
        Scope.CHANNEL,
        "counters.spin_hits",
        "A program polled for its answer instead of sleeping, and found it",
    ),
    _counter(
        "channel_spin_misses",
        Scope.CHANNEL,
        "counters.spin_misses",
        "A program polled, found none in time, and went to sleep",
    ),
    _counter(
        "channel_elsewhere",
        Scope.CHANNEL,
        "counters.elsewhere",
        "Requests sent from the CPU to a channel other than its own or the nearest",
    ),
    _counter(
        "channel_others_woken",
        Scope.CHANNEL,
        "counters.others_woken",
        "A worker of another channel was woken for a request that was sent from the CPU",
    ),
    _counter("channel_brought", Scope.CHANNEL, "counters.brought", "Requests brought to workers"),
    _counter(
        "channel_refused",
        Scope.CHANNEL,
        "counters.refused",
        "Calls of workers with a slot of another worker, or without a reply in the slot",
    ),
)

_MAPS = (
    _gauge("map_entries", Scope.MAP, "used", "Elements in use in the BPF map", Needs.MAPS),
    _gauge(
        "map_max_entries", Scope.MAP, "capacity", "Elements that the BPF map can hold", Needs.MAPS
    ),
)

_PLAIN = (
    _gauge(
        "plain_up",
        Scope.ALL,
        "plain_up",
        "1: requests of plain FUSE mounts are counted",
        Needs.PLAIN,
    ),
    _counter(
        "plain_missed_requests",
        Scope.ALL,
        "plain_missed",
        "Requests of plain FUSE mounts that were missed",
        Needs.PLAIN,
    ),
    _gauge(
        "plain_waiting_requests",
        Scope.PLAIN,
        "waiting",
        "Requests that wait for the daemon or are in flight",
        Needs.PLAIN,
    ),
    _counter(
        "plain_requests",
        Scope.PLAIN_OPCODE,
        "counters.requests",
        "Requests answered by the daemon since the exporter started",
        Needs.PLAIN,
    ),
    _counter(
        "plain_errors",
        Scope.PLAIN_OPCODE,
        "counters.errors",
        "Requests answered by the daemon with an error since the exporter started",
        Needs.PLAIN,
    ),
    Metric(
        "efuse_plain_duration_seconds",
        Kind.HISTOGRAM,
        Scope.PLAIN_OPCODE,
        "Time from sending a request to the daemon until its answer arrives",
        {"sum": "counters.daemon_ns", "classes": "latency"},
        needs=Needs.PLAIN,
    ),
)

_DEVICES = (
    Metric(
        "efuse_device_info",
        Kind.INFO,
        Scope.DEVICE,
        "The emulated device, with its disk as a label: 1",
        {"disk": "disk"},
    ),
    Metric(
        "efuse_device_mount_info",
        Kind.INFO,
        Scope.DEVICE_MOUNT,
        "The device's disk is mounted there: 1",
        {},
    ),
    _gauge("device_cores", Scope.DEVICE, "cores", "Commands that compute at the same time"),
    *(
        _counter(f"device_{where}_{way}_bytes", Scope.DEVICE, f"counters.{where}_{way}_bytes", doc)
        for where, way, doc in (
            ("link", "read", "Bytes sent to the host over the link"),
            ("link", "write", "Bytes received from the host over the link"),
            ("media", "read", "Bytes read from the medium"),
            ("media", "write", "Bytes written to the medium"),
        )
    ),
    _counter(
        "device_core_busy_seconds", Scope.DEVICE, "counters.core_busy_ns", "Busy time of the cores"
    ),
    _counter("device_reads", Scope.DEVICE, "counters.reads", "Requests that read"),
    _counter("device_writes", Scope.DEVICE, "counters.writes", "Requests that write"),
    _counter(
        "device_commands", Scope.DEVICE, "counters.commands", "Runs of functions over some blocks"
    ),
    Metric(
        "efuse_device_batches_total",
        Kind.COUNTER,
        Scope.DEVICE,
        "Batches of blocks, by the place that was predicted to be faster",
        {place: f"counters.chosen_{place}" for place in ("device", "kernel")},
        label="place",
    ),
    _counter(
        "device_policy_batches",
        Scope.DEVICE,
        "counters.chosen_policy",
        "Batches of blocks whose place a policy has chosen",
    ),
    _counter(
        "device_predicted_seconds",
        Scope.DEVICE,
        "counters.predicted_ns",
        "Time that batches were predicted to take",
    ),
    _counter(
        "device_actual_seconds",
        Scope.DEVICE,
        "counters.actual_ns",
        "Time that the same batches took",
    ),
    _counter(
        "device_prediction_error_seconds",
        Scope.DEVICE,
        "counters.error_ns",
        "Total of the differences between predicted and actual time of batches",
    ),
)

_SERVICE = (
    _gauge(
        "service_up",
        Scope.SERVICE,
        "up",
        "1: the process of `efuse service` runs; absent if it has never run",
    ),
    _gauge(
        "service_invalid_descriptions",
        Scope.SERVICE,
        "invalid",
        "Descriptions of mounts that `efuse service` cannot use",
    ),
    Metric(
        "efuse_service_mount_info",
        Kind.INFO,
        Scope.SERVICE_MOUNT,
        "State of the described mount as a label; the value is always 1",
        {"state": "seen.state"},
    ),
    _gauge(
        "service_mount_up",
        Scope.SERVICE_MOUNT,
        "is_up",
        "1: the described mount has a daemon, which answers",
    ),
    _counter(
        "service_mount_successors",
        Scope.SERVICE_MOUNT,
        "seen.incarnation",
        "Daemons that have taken the described mount over",
    ),
    _gauge(
        "service_mount_waiting_requests",
        Scope.SERVICE_MOUNT,
        "seen.waiting",
        "Requests of callers that wait for the daemon of the described mount",
    ),
)

METRICS: tuple[Metric, ...] = (
    _gauge(
        "up", Scope.ALL, "up", "1: the module is loaded, and all requested values could be read"
    ),
    *_MOUNTS,
    *_OPCODES,
    *_PATHS,
    *_CHANNELS,
    *_MAPS,
    *_PLAIN,
    *_DEVICES,
    *_SERVICE,
)
"""All metrics, in the order of docs/monitoring.md."""
