# SPDX-License-Identifier: LGPL-2.1-or-later
"""The exporter over HTTP, and the command ``efuse exporter``."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from efuse import csd, exporter
from efuse.cli.main import main
from efuse.errors import UsageError
from efuse.exporter import Address, Collector, Server, registry
from efuse.stats import MapUsage
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_sysfs import FakeSysfs

FREE = Address("127.0.0.1", 0)


@pytest.fixture
def sysfs(tmp_path: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    FakeConfigfs(tmp_path, monkeypatch)
    tree = FakeSysfs(memory_path)
    tree.everywhere(monkeypatch)
    monkeypatch.setattr("efuse.stats.maps.usage", lambda number: (MapUsage("attrs", 1, 9),))
    return tree


def efuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(("exporter", *arguments))
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def get(url: str, accept: str = "text/plain") -> str:
    # Without a proxy: the server is this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Accept": accept})
    with opener.open(request, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_each_scrape_reads_current_counters(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    with Server(FREE, registry(Collector())) as server:
        assert server.url.startswith("http://127.0.0.1:")
        found = []
        for requests in (4, 9):
            sysfs.count(41, "lookup", requests=requests)
            families = {f.name: f for f in text_string_to_metric_families(get(server.url))}
            (sample,) = families["efuse_requests"].samples
            assert sample.labels == {"connection": "41", "mountpoint": "/mnt/a", "opcode": "lookup"}
            found.append(sample.value)
    assert found == [4, 9]


def test_scrape_with_names_returns_only_those_metrics(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    with Server(FREE, registry(Collector())) as server:
        text = get(f"{server.url}?name[]=efuse_waiting_requests")
    names = [family.name for family in text_string_to_metric_families(text)]
    assert names == ["efuse_waiting_requests"]


def test_scrape_that_accepts_openmetrics_gets_it(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=4, hit_ns=7, hit_timed=1)
    sysfs.count_path(41, "direct", latency={7: 3}, ns=3000)
    sysfs.count_channel(41, 0, slots=4)
    csd.create("one", {})
    with Server(FREE, registry(Collector(times=True, maps=True))) as server:
        text = get(server.url, "application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    kinds = {family.name: family.type for family in openmetrics(text)}
    assert kinds["efuse_mount"] == "info"
    assert kinds["efuse_path_duration_seconds"] == "histogram"
    assert kinds["efuse_hit_duration_seconds"] == "summary"
    assert kinds["efuse_device_cores"] == "gauge"


def test_once_prints_the_metrics(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a")
    code, out, err = efuse(capsys, "--once")
    assert (code, err) == (0, "")
    families = {family.name for family in text_string_to_metric_families(out)}
    assert "efuse_path_requests" in families
    assert not {"efuse_path_duration_seconds", "efuse_map_entries"} & families
    _, out, _ = efuse(capsys, "--once", "--times", "--maps")
    families = {family.name for family in text_string_to_metric_families(out)}
    assert {"efuse_path_duration_seconds", "efuse_map_entries"} <= families


def test_once_cannot_count_plain_mounts(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = efuse(capsys, "--once", "--plain")
    assert (code, out) == (2, "")
    assert "--plain counts from the start of the exporter" in err


def test_once_without_the_module_reports_efuse_up_0(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    (sysfs.root / "connections").rmdir()
    code, out, err = efuse(capsys, "--once")
    assert code == 0
    assert out.splitlines()[-1] == "efuse_up 0.0"
    assert err.startswith("efuse: the eFuse module is not loaded")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_exporter_with_status_0(number: signal.Signals) -> None:
    code = "from efuse.cli.main import main; main()"
    command = [sys.executable, "-c", code, "exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "efuse_up " in get(process.stderr.readline().strip())
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait() == 0
    assert "Traceback" not in rest


def test_exporter_listens_on_this_machine_alone_by_default(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    monkeypatch.setattr(exporter, "serve", lambda address, *_: seen.append(address))
    assert efuse(capsys) == (0, "", "")
    assert efuse(capsys, "--listen", ":9435") == (0, "", "")
    assert [str(address) for address in seen] == ["127.0.0.1:9435", "0.0.0.0:9435"]


def test_an_address_in_use_fails(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = efuse(capsys, "--listen", where)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"efuse: cannot listen on {where}: Address already in use (EADDRINUSE)",
        "try: use --listen with another address or port",
    ]


def test_listen_on_an_unknown_host_fails(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    code, _, err = efuse(capsys, "--listen", "nowhere:9435")
    assert code == 1
    assert err.startswith("efuse: cannot listen on nowhere:9435: Name or service not known\n")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9435", "127.0.0.1", 9435),
        ("localhost:0", "localhost", 0),
        (":80", "0.0.0.0", 80),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize("text", ["", "9435", "host:", "host:x", "host:65536", "host:-1", "::1:80"])
def test_malformed_address_fails(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address to listen on"):
        Address.parse(text)


def test_without_the_package_it_is_not_supported(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("efuse.exporter")
    for name in [n for n in sys.modules if n.startswith(exporter.__name__)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    code, out, err = efuse(capsys, "--once")
    assert (code, out) == (3, "")
    assert err.startswith("efuse: metrics cannot be exported: ")
    assert "prometheus_client" in err
    assert err.splitlines()[-1] == "try: pip install 'efuse[exporter]'"
    code, out, _ = efuse(capsys, "--dashboard")
    assert code == 0
    assert json.loads(out)["title"] == "eFuse"


@pytest.mark.parametrize(("error", "output"), [(BrokenPipeError(), False), (ValueError(), True)])
def test_disconnected_scraper_logs_no_traceback(
    error: Exception, output: bool, sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server(FREE, registry(Collector())) as server:
        try:
            raise error
        except (BrokenPipeError, ValueError):
            server._http.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is output
