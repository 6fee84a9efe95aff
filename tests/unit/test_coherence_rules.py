# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a request or an event changes: the kernel, docs/coherence.md and `efuse advise` agree.

The kernel is read as text. The functions that name buckets are small and regular: statements, `if`,
`for` and one `switch`, with calls to each other. `_effects` follows them for each opcode and notes
what is changed, and under which condition.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from efuse import opcodes
from efuse.tracing import Advisor, Request
from efuse.tracing.advice import _depends

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "kernel_patches" / "src"
DOCUMENT = REPOSITORY / "docs" / "coherence.md"

# A change: the role of the inode in the request ("" for none), and the kind.
Change = tuple[str, str]

# The document's word for each kind of the kernel.
KINDS = {
    "EFUSE_KIND_ATTR": "attributes",
    "EFUSE_KIND_ATIME": "atime",
    "EFUSE_KIND_XATTR": "xattrs",
    "EFUSE_KIND_DATA": "data",
    "EFUSE_KIND_CONTENT": "content",
    "EFUSE_KIND_EOF": "eof",
    "EFUSE_KIND_IDENTITY": "identity",
    "EFUSE_KIND_VOLUME": "volume",
    "EFUSE_KIND_RIGHTS": "rights",
    "EFUSE_KIND_PAGES": "pages",
}

# The inode that a kernel expression stands for.
INODES = {
    "nodeid": "inode",
    "args->nodeid": "inode",
    "parent": "inode",
    "efuse_arg_newdir(args)": "other",
    "copy->nodeid_out": "other",
    "args->efuse.child[i]": "child",
    "child": "child",
    "entry->nodeid": "child",
    "entry ? entry->nodeid : 0": "child",
    "ff->nodeid": "inode",
    "get_node_id(inode)": "inode",
    "0": "",
}

# The inode that the document's words stand for. Two: the changes are of both.
OWNERS = {
    "the directory": ("inode",),
    "the source": ("inode",),
    "the target": ("other",),
    "the linked file": ("other",),
    "the removed inode": ("child",),
    "the child": ("child",),
    "the opened file": ("child",),
    "both directories": ("inode", "other"),
    "both inodes": ("child",),
}

# The document's words for conditions of the kernel; "" for those that every such request fulfils.
CONDITIONS = {
    "name": "",
    "copy": "",
    "args->efuse.child[i]": "",
    # The buckets of blocks have no limit in the document: from it on, all of the file changes.
    "!(nr > EFUSE_MAX_BLOCKS)": "",
    "nr > EFUSE_MAX_BLOCKS": "of more than 8 MiB",
    "args->efuse.extends": "that may lengthen the file",
    "efuse_arg_flags(args) & FATTR_SIZE": "of the size",
    "efuse_arg_flags(args) & (FATTR_MODE | FATTR_UID | FATTR_GID)": "of mode or owner",
    "efuse_arg_flags(args) & O_TRUNC": "with O_TRUNC",
    "args->efuse.revalidate": "in `cto`",
    "args->efuse.written": "of a file written since it was opened",
}

# The requests for which fs/fuse notes the inodes under the names.
WITH_CHILD = {"unlink", "rmdir", "rename", "rename2"}

# The function of the kernel for each row of the document's table of events, and the conditions in
# it that hold and that do not hold.
EVENTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "INVAL_INODE": ("efuse_notify_content", ("code == EFUSE_NOTIFY_INVAL_INODE",), ("!ec",)),
    "STORE": ("efuse_notify_content", (), ("!ec", "code == EFUSE_NOTIFY_INVAL_INODE")),
    "INVAL_ENTRY": ("efuse_notify_entry", (), ("!ec", "child")),
    "DELETE": ("efuse_notify_entry", ("child",), ("!ec",)),
    "INC_EPOCH": ("efuse_notify_all", (), ("!ec",)),
    "FUSE lowers a link count": ("efuse_links_dropped", ("ec",), ()),
    "ESTALE": ("efuse_replied", ("req->error == -ESTALE",), ()),
    "CREATE with O_TRUNC over a file of another program": ("efuse_created_over", (), ()),
    "attributes tell that a file has one name left": ("efuse_names_end", (), ()),
    "the daemon reads a FORGET": ("efuse_forget_read", ("forget->efuse_changes",), ("!ec",)),
    "a write through FUSE passthrough": ("efuse_inode_written", (), ("!ec",)),
    "a shared, writable mapping through FUSE passthrough": ("efuse_passthrough_mapped", (), ()),
    "EFUSE_IOC_MAP, EFUSE_IOC_UNMAP": ("efuse_backed_changed", (), ()),
    "a successor of a dead daemon serves": ("efuse_serve", (), ("!efuse_background_release(ec)",)),
    "a READ of a backing file that has changed": ("efuse_content_seen", (), ()),
    "another change of the file during a WRITE that was known not to lengthen it": (
        "efuse_size_crossed",
        (),
        (),
    ),
    "FUSE sets the size to 0 in open(2) with O_TRUNC": ("efuse_size_cut", ("ec",), ()),
    "AT_STATX_FORCE_SYNC": ("efuse_force_sync", (), ()),
    "a permission check that asks for a list": ("efuse_permission", (), ()),
}


def _source(name: str) -> str:
    """Return the text of a source file, wherever below src/ it lies, without comments."""
    (path,) = SOURCES.rglob(name)
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


@dataclass(frozen=True)
class Function:
    """A function of the kernel: names of its parameters, text of its body."""

    parameters: tuple[str, ...]
    body: str


def _functions(text: str) -> dict[str, Function]:
    found = {}
    for match in re.finditer(
        r"^[a-z][\w ]*?[ *](\w+)\(([^{};]*)\)\n\{\n(.*?)^\}", text, flags=re.MULTILINE | re.DOTALL
    ):
        parameters = tuple(
            re.findall(r"\w+", one)[-1] for one in match[2].split(",") if one.strip()
        )
        found[match[1]] = Function(parameters, match[3])
    return found


@dataclass(frozen=True)
class Statement:
    """A statement: `kind` is one of "if", "switch", "label", "return", "break", "plain".

    `text` is the condition, the label or the statement itself. The body of a loop stands in the
    loop's place: it is carried out at least once.
    """

    kind: str
    text: str = ""
    then: tuple[Statement, ...] = ()
    other: tuple[Statement, ...] = ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def all(self) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self._skip() and not self._text.startswith("}", self._at):
            found += self._statement()
        return tuple(found)

    def _skip(self) -> bool:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at < len(self._text)

    def _take(self, pattern: str) -> re.Match[str] | None:
        self._skip()
        match = re.compile(pattern, re.DOTALL).match(self._text, self._at)
        if match:
            self._at = match.end()
        return match

    def _brackets(self) -> str:
        start, depth = self._at, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
            self._at += 1
        return " ".join(self._text[start : self._at - 1].split())

    def _block(self) -> tuple[Statement, ...]:
        if not self._take(r"\{"):
            return self._statement()
        inside = self.all()
        assert self._take(r"\}"), self._text[self._at :]
        return inside

    def _statement(self) -> tuple[Statement, ...]:
        if self._take(r"if \("):
            condition, then = self._brackets(), self._block()
            return (Statement("if", condition, then, self._block() if self._take("else") else ()),)
        if self._take(r"switch \("):
            return (Statement("switch", self._brackets(), self._block()),)
        if self._take(r"for \("):
            self._brackets()
            return self._block()
        if match := self._take(r"(?:case (\w+)|default):"):
            return (Statement("label", match[1] or "default"),)
        if self._take(r"break;"):
            return (Statement("break"),)
        if match := self._take(r"return\b([^;]*);"):
            return (Statement("return", match[1]),)
        match = self._take(r"([^;{}]|\{[^{}]*\})*;")
        assert match, self._text[self._at :]
        return (Statement("plain", " ".join(match[0].split())),)


class _Run:
    """Follow a function, and note changes with the conditions under which they happen."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        opcode: str = "",
        true: Iterable[str] = (),
        false: Iterable[str] = (),
        depends: bool = False,
    ) -> None:
        self._functions = functions
        self._opcode = opcode
        self._depends = depends
        self._true, self._false = set(true), set(false)
        self.found: list[tuple[Change, tuple[str, ...]]] = []

    def call(self, name: str, arguments: tuple[str, ...] = (), when: tuple[str, ...] = ()) -> None:
        function = self._functions[name]
        body = function.body
        for parameter, argument in zip(function.parameters, arguments, strict=False):
            body = re.sub(rf"(?<![\w.>]){parameter}\b", argument, body)
        self._follow(_Parser(body).all(), when)

    def _follow(
        self, statements: tuple[Statement, ...], when: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Follow statements; return how they end, and the condition of what comes after."""
        for one in statements:
            if one.kind in ("return", "break"):
                self._effects(one.text, when)
                return one.kind, when
            if one.kind == "switch":
                end, _ = self._follow(self._cases(one.then), when)
                if end == "return":
                    return end, when
            elif one.kind == "if":
                end, when = self._branch(one, when)
                if end:
                    return end, when
            else:
                self._effects(one.text, when)
        return "", when

    def _branch(self, one: Statement, when: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        if one.text in self._true:
            return self._follow(one.then, when)
        if one.text in self._false:
            return self._follow(one.other, when)
        yes, no = (*when, one.text), (*when, f"!({one.text})")
        end, _ = self._follow(one.then, yes)
        self._follow(one.other, no)
        return "", no if end else when

    def _cases(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        labels = [one.text if one.kind == "label" else "" for one in statements]
        start = labels.index(self._opcode if self._opcode in labels else "default")
        return tuple(one for one in statements[start:] if one.kind != "label")

    def _effects(self, text: str, when: tuple[str, ...]) -> None:
        for call in re.finditer(r"efuse_bucket_(inode|entry|identity)\(", text):
            # A bucket that is only compared is not changed.
            if not self._depends and re.search(
                r"efuse_(epoch_enter|\w*valid|\w*quiet)\([^;]*$", text[: call.start()]
            ):
                continue
            arguments = _arguments(text, call.end())
            what = {"entry": "name", "identity": "identity"}.get(call[1]) or KINDS[arguments[1]]
            self._add(arguments[0], what, when)
        if (match := re.fullmatch(r"ch->nr_blocks = (.*);", text)) and match[1] != "0":
            self._add("args->nodeid", "blocks", when)
        if "efuse_epoch_void(" in text:
            self._add("0", "everything", when)
        for call in re.finditer(r"\b(efuse_changes_\w+)\(", text):
            if call[1] != "efuse_changes_add":
                self.call(call[1], _arguments(text, call.end()), when)

    def _add(self, inode: str, what: str, when: tuple[str, ...]) -> None:
        owner = "" if what in ("volume", "everything") else INODES[inode]
        self.found.append(((owner, what), when))


def _arguments(text: str, at: int) -> tuple[str, ...]:
    """Return the arguments of a call whose bracket was opened before *at*."""
    found, depth = [""], 1
    for char in text[at:]:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not depth:
            break
        if char == "," and depth == 1:
            found.append("")
        else:
            found[-1] += char
    return tuple(one.strip() for one in found)


def _joined(found: Iterable[tuple[Change, tuple[str, ...]]]) -> dict[Change, set[str]]:
    """Return the conditions of each change, in the document's words, as few as possible."""
    conditions: dict[Change, set[tuple[str, ...]]] = {}
    for change, when in found:
        conditions.setdefault(change, set()).add(when)
    result: dict[Change, set[str]] = {}
    for change, ways in conditions.items():
        for way in list(ways):
            if way and (*way[:-1], f"!({way[-1]})") in ways:
                ways.add(way[:-1])
        words = {" ".join(filter(None, (CONDITIONS[one] for one in way if _counts(one, ways))))
                 for way in ways}  # fmt: skip
        result[change] = {""} if "" in words else words
    return result


def _counts(condition: str, ways: set[tuple[str, ...]]) -> bool:
    """Does the condition decide? Not if the change happens whether or not it holds."""
    return not (condition.startswith("!(") and condition not in CONDITIONS and () in ways)


def kernel(opcode: str) -> dict[Change, set[str]]:
    """Return what a request of *opcode* changes, by the kernel's source."""
    run = _Run(_functions(_source("changes.c")), _constant(opcode))
    run.call("efuse_changes_of")
    found = _joined(run.found)
    if opcode not in WITH_CHILD:
        found = {change: when for change, when in found.items() if change[0] != "child"}
    return found


def _constant(opcode: str) -> str:
    return ("EFUSE_" if opcode == "copy_file_range_64" else "FUSE_") + opcode.upper()


def _rows(heading: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of the first table after a heading of the document."""
    _, _, text = DOCUMENT.read_text().partition(f"\n### {heading}\n")
    assert text, f"no heading {heading!r} in {DOCUMENT.name}"
    lines = text[text.index("\n| ") + 1 :].split("\n\n")[0].splitlines()
    for line in lines[2:]:
        yield tuple(cell.strip() for cell in line.strip("|").split("|"))


def _cell(text: str) -> set[Change]:
    """Return the changes that a cell names: groups, separated by ``;``, each ``of X: a, b``."""
    found: set[Change] = set()
    for group in text.split("; "):
        whose, colon, things = group.rpartition(": ")
        owners = OWNERS[whose.removeprefix("of ")] if colon else ("inode",)
        for thing in things.split(", "):
            if thing == "nothing":
                continue
            if thing in ("the name", "both names"):
                both = ("inode", "other") if thing == "both names" else ("inode",)
                found |= {(owner, "name") for owner in both}
            elif thing in ("volume", "everything"):
                found.add(("", thing))
            else:
                assert thing in {*KINDS.values(), "blocks"}, thing
                found |= {(owner, thing) for owner in owners}
    return found


EVENT_ROWS = {name: _cell(changes) for name, changes, _ in _rows("What else changes something")}


def document() -> dict[str, dict[Change, set[str]]]:
    """Return what each request changes, by the document's table, by opcode."""
    found: dict[str, dict[Change, set[str]]] = {}
    for requests, when, changes, _ in _rows("What a request changes"):
        for request in requests.split(", "):
            if request == "...":
                continue
            mine = found.setdefault(request.lower(), {})
            for change in _cell(changes):
                mine.setdefault(change, set()).add(when)
    return found


@pytest.mark.parametrize("opcode", opcodes.NUMBERS)
def test_document_has_what_the_kernel_changes_for_each_opcode(opcode: str) -> None:
    assert document().get(opcode, {}) == kernel(opcode)


def test_document_names_only_opcodes() -> None:
    assert document().keys() <= opcodes.NUMBERS.keys()


def test_kernel_changes_something_only_for_known_opcodes() -> None:
    names = re.findall(
        r"case (E?FUSE_\w+):", _functions(_source("changes.c"))["efuse_changes_of"].body
    )
    assert len(names) > 30
    assert set(names) <= {_constant(name) for name in opcodes.NUMBERS}


def test_children_are_noted_for_the_requests_that_remove_a_name() -> None:
    for patch in (REPOSITORY / "kernel_patches").glob("*/0001-fuse-call-outs.patch"):
        # fuse_unlink(), fuse_rmdir(), fuse_rename_common()
        assert patch.read_text().count("\n+\tefuse_child_args(") == 3


def test_document_has_all_kinds_of_the_kernel() -> None:
    headers = "".join(path.read_text() for path in SOURCES.rglob("*.h"))
    (kinds,) = re.findall(r"enum efuse_kind \{(.*?)\}", headers, flags=re.DOTALL)
    named = {KINDS[kind] for kind in re.findall(r"\bEFUSE_KIND_\w+", kinds)}
    assert named == set(KINDS.values())
    text = DOCUMENT.read_text()
    for kind in named:
        assert f"*{kind}*" in text


@pytest.mark.parametrize("event", EVENTS)
def test_document_has_what_the_kernel_changes_at_each_event(event: str) -> None:
    function, true, false = EVENTS[event]
    rules = _functions(_source("changes.c"))
    found = []
    for path in SOURCES.rglob("*.c"):
        if function in (own := _functions(_source(path.name))):
            run = _Run({**rules, **own}, true=true, false=false)
            run.call(function)
            found.append({change for change, _ in run.found})
    # answer.c has another efuse_replied(), which changes nothing.
    (changes,) = filter(None, found)
    assert changes == EVENT_ROWS[event]


def test_events_of_the_document_are_compared() -> None:
    assert EVENT_ROWS.keys() == EVENTS.keys()


# The document's rows of what an answer depends on: a request, the functions of the kernel that name
# the buckets, the conditions in these that hold and that do not hold.
ANSWERS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "LOOKUP, found": ("lookup", ("entry", "attrs"), (), ()),
    "LOOKUP, absent": ("lookup", ("entry",), (), ()),
    "GETATTR": ("getattr", ("attrs",), (), ()),
    "GETXATTR, LISTXATTR with a value": ("listxattr", ("blob",), ("opcode", "!absent"), ()),
    "GETXATTR, absent": ("getxattr", ("blob",), ("opcode",), ("!absent",)),
    "READLINK": ("readlink", ("blob",), ("!absent",), ("opcode",)),
    "ACCESS": ("access", ("grant",), (), ()),
    "OPEN, OPENDIR": ("open", ("grant",), (), ()),
    "STATFS": ("statfs", ("volume",), (), ()),
    "READ, each block": ("read", ("block_valid",), (), ()),
    "FLUSH": ("flush", ("file_written",), (), ()),
}

# The advisor's kinds are the document's, but it has one for all of a file's content, and knows of
# no pages.
MODEL = {"content": "data", "eof": "data", "blocks": "data", "pages": None}
# The advisor estimates what happens in `exclusive`.
NOT_IN_EXCLUSIVE = {"in `cto`"}
# A FORGET has no answer, so no trace has it.
NOT_TRACED = {"forget"}

INODE, OTHER, CHILD, OTHER_CHILD, HANDLE = 10, 20, 30, 31, 7
_FLAGS = {"of the size": 1 << 3, "of mode or owner": 1 << 1, "with O_TRUNC": 0o1000}


def _request(opcode: str, condition: str = "", **more: object) -> Request:
    """Return an answered request of *opcode* that fulfils *condition*."""
    arguments = struct.pack("=II", _FLAGS.get(condition, 0), 0)
    if opcode in ("rename", "rename2", "link"):
        arguments = struct.pack("=Q", OTHER)
    elif opcode.startswith("copy_file_range"):
        arguments = struct.pack("=QQQQQQQ", 0, 0, OTHER, 0, 0, 0, 0)
    elif opcode in ("flush", "release"):
        arguments = struct.pack("=Q", HANDLE)
    fields = {"names": (b"a", b"b"), "arguments": arguments, "time_ns": 1000, "ns": 100, **more}
    return replace(Request(0, None, 1, opcode, INODE), **fields)


def _advisor(written: bool) -> Advisor:
    """Return an advisor that knows the names, and an open file, which was *written* or not."""
    advisor = Advisor()
    for parent, name, child in ((INODE, b"a", CHILD), (OTHER, b"b", OTHER_CHILD)):
        answer = struct.pack("=QQ", child, 0)
        advisor.add(_request("lookup", nodeid=parent, names=(name,), answer=answer, time_ns=1))
    advisor.add(_request("open", answer=struct.pack("=Q", HANDLE), time_ns=2))
    if written:
        advisor.add(_request("write", time_ns=3))
    return advisor


def advice(opcode: str, condition: str = "") -> set[Change]:
    """Return what a request changes, by the advisor."""
    owners = {INODE: "inode", OTHER: "other", CHILD: "child", OTHER_CHILD: "child", 0: ""}
    advisor = _advisor(condition == "of a file written since it was opened")
    changes = advisor._changes(_request(opcode, condition))
    return {(owners[nodeid], kind) for kind, nodeid, _ in changes}


def _modelled(changes: Iterable[Change]) -> set[Change]:
    kinds = ((owner, MODEL.get(kind, kind)) for owner, kind in changes)
    return {(owner, kind) for owner, kind in kinds if kind is not None}


@pytest.mark.parametrize("opcode", opcodes.NUMBERS)
def test_advice_has_what_the_kernel_changes_for_each_opcode(opcode: str) -> None:
    if opcode in NOT_TRACED:
        return
    rules = kernel(opcode)
    conditions = {one for when in rules.values() for one in when} - NOT_IN_EXCLUSIVE
    for condition in {"", *conditions}:
        found = {change for change, when in rules.items() if when & {"", condition}}
        assert advice(opcode, condition) == _modelled(found), condition


@pytest.mark.parametrize(
    ("opcode", "ret", "answer"),
    [
        ("setxattr", -errno.ENOSYS, b""),
        ("ioctl", -errno.ENOTTY, b""),
        ("ioctl", 0, struct.pack("=i", -errno.ENOTTY)),
    ],
)
def test_advice_changes_nothing_if_the_daemon_does_not_know_the_request(
    opcode: str, ret: int, answer: bytes
) -> None:
    assert not list(Advisor()._changes(_request(opcode, ret=ret, answer=answer)))


def test_advice_has_what_estale_changes() -> None:
    changes = Advisor()._changes(_request("getattr", ret=-errno.ESTALE))
    mine = {("inode", kind) for kind, nodeid, _ in changes if nodeid == INODE}
    assert mine == EVENT_ROWS["ESTALE"]


def _learned(row: str) -> set[Change]:
    """Return what an answer depends on, by the kernel."""
    _, names, true, false = ANSWERS[row]
    opcode = {"opcode": "args->opcode != FUSE_READLINK"}
    functions = {
        name: function
        for file in ("learn.c", "epochs.c", "changes.c")
        for name, function in _functions(_source(file)).items()
        if "efuse_bucket_inode(" in function.body
    }
    found: set[Change] = set()
    for suffix in names:
        (name,) = (name for name in functions if name.endswith(f"_{suffix}"))
        run = _Run(
            {name: functions[name]},
            true=[opcode.get(one, one) for one in true],
            false=[opcode.get(one, one) for one in false],
            depends=True,
        )
        run.call(name)
        changes = {change for change, _ in run.found}
        if suffix == "entry":
            # Attributes have this bucket, too; a name that is learned alone needs it.
            assert ("child", "identity") in changes
        if row == "LOOKUP, found" and suffix == "attrs":
            changes = {("child", kind) for _, kind in changes}
        found |= changes
    if row == "LOOKUP, absent":
        found = {change for change in found if change[0] != "child"}
    # The bucket of a block is no bucket of an inode.
    return found | ({("inode", "blocks")} if row.startswith("READ,") else set())


ANSWER_ROWS = {name: _cell(things) for name, things, _ in _rows("What an answer depends on")}


@pytest.mark.parametrize("row", ANSWERS)
def test_document_has_what_an_answer_of_the_kernel_depends_on(row: str) -> None:
    assert ANSWER_ROWS[row] == _learned(row)


def test_answers_of_the_document_are_compared() -> None:
    assert ANSWER_ROWS.keys() == ANSWERS.keys()


@pytest.mark.parametrize("row", ANSWERS)
def test_advice_has_what_an_answer_of_the_kernel_depends_on(row: str) -> None:
    absent = row.endswith("absent")
    request = _request(
        ANSWERS[row][0],
        names=(b"a",),
        ret=-errno.ENODATA if row == "GETXATTR, absent" else 0,
        answer=struct.pack("=QQ", 0 if absent else CHILD, 0),
    )
    owners = {INODE: "inode", CHILD: "child", 0: ""}
    found = {(owners[nodeid], kind) for kind, nodeid, _ in _depends(request)}
    assert found == _modelled(_learned(row))
