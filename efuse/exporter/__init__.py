# SPDX-License-Identifier: LGPL-2.1-or-later
"""Export the counters of mounts and devices to Prometheus. Needs ``prometheus-client``.

>>> from efuse.exporter import Collector, exposition
>>> print(exposition(Collector()).decode())
"""

from efuse.exporter.collector import Collector, exposition, registry
from efuse.exporter.server import Address, Server, serve

__all__ = ["Address", "Collector", "Server", "exposition", "registry", "serve"]
