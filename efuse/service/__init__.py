# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep the mounts running that a directory of files describes.

There is no protocol and no server. The service and the commands of `efuse service` call the same
functions, under a lock of the mount. What is mounted, the kernel tells. A small file for each mount
tells which process was started for it.
"""
