# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile one text with BCC, in the system's Python, in a separate process.

Read {"text", "cflags"} as JSON from stdin. Write {"functions": {name: hex}, "maps": [...]} to the
file named by argv[1]. The messages of clang, the text as BCC rewrites it, and the disassembly with
source lines go to stdout and stderr.
"""

import ctypes
import json
import sys

DEBUG_PREPROCESSOR, DEBUG_SOURCE = 4, 8


def main() -> int:
    """Compile the text and write the result. Return the exit status."""
    request = json.load(sys.stdin)
    try:
        from bcc import BPF
        from bcc.libbcc import lib
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    try:
        module = BPF(
            text=request["text"],
            cflags=request["cflags"],
            debug=DEBUG_PREPROCESSOR | DEBUG_SOURCE,
        )
    except Exception as error:  # noqa: BLE001 - BCC raises no narrower type
        print(error, file=sys.stderr)
        return 1
    handle = module.module
    lib.bpf_table_name.restype = ctypes.c_char_p
    functions = {}
    for i in range(lib.bpf_num_functions(handle)):
        name = lib.bpf_function_name(handle, i).decode()
        functions[name] = module.dump_func(name.encode()).hex()
    maps = [
        {
            "name": lib.bpf_table_name(handle, i).decode(),
            "fd": lib.bpf_table_fd_id(handle, i),
            "type": lib.bpf_table_type_id(handle, i),
            "key_bytes": lib.bpf_table_key_size_id(handle, i),
            "value_bytes": lib.bpf_table_leaf_size_id(handle, i),
            "max_entries": lib.bpf_table_max_entries_id(handle, i),
            "flags": lib.bpf_table_flags_id(handle, i),
        }
        for i in range(lib.bpf_num_tables(handle))
    ]
    with open(sys.argv[1], "w", encoding="ascii") as out:  # noqa: PTH123
        json.dump({"functions": functions, "maps": maps}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
