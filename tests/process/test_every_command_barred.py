"""Every command of the tool × every output where the services are well and do not let us in, or we may not read what we need.

The right exit code, clean output, no trace, an end within the timeout; and the message says that it is the key, the role, the
socket's owner or the file, and what to do. That is not a silent service: nobody shall look for a fault there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command_table
import pytest
from cluster import Cluster, Process, ask, free_port, make_keys, told, until
from command_table import TABLE, Ended, Place, Row, complaints, leaf_of, name_of
from keys import Keys
from pegaflow.common.bus.endpoint import without_key
from pegaflow.common.bus.keyring import Keyring, new_pair
from pegaflow.common.bus.roles import Role
from pegaflow.common.private import write_secret
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages import catalogue, operate
from pegaflow.services.cli.__main__ import main
from pegaflow.services.cli.access import ADVICE, Access

pytestmark = pytest.mark.timeout(300)

NOBODY = 65_534
ASKING = [row for row in TABLE if leaf_of(row).asks and row.line != "config show" and row.barred != 2]
"""Those that talk to a service. What needs a yes that nobody gives, or only looks at files, does not get so far."""
WAYS = [row for row in ASKING if name_of(row) in ("status", "check ping", "monitor", "send", "engine list", "node show", "dump")]
"""One of each way in which commands ask."""


class Keyed:
    """A deployment under keys, two keys that do not open it, and files that stand for the names in the table's lines.

    `b`: the request endpoint of that tier, over TCP.
    """

    b = ""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.keys, self.shared = Keys(folder), shared
        self.unlisted = self.keys.file(Role.OPERATOR, listed=False)
        self.engine = self.keys.file(Role.ENGINE)
        self.listed = self.keys.file(Role.OPERATOR)
        self.cluster = Cluster(folder, mover=False, keys=self.keys, router=True)
        tokens, secret = shared / "tokens", shared / "secret"
        tokens.write_text("1 2 3")
        tokens.chmod(0o644)
        write_secret(secret, new_pair()[1])
        self.values = {"key": make_keys(1)[0].hex(), "tokens": str(tokens), "secret": str(secret), "folder": str(shared)}

    def nodes(self) -> catalogue.NodeList:
        ring = Keyring(Role.OPERATOR, self.listed, None)
        return ask(self.cluster.metaserver_endpoint, catalogue.Nodes(), ring=ring)  # type: ignore[no-any-return]

    def place(self, more: str, change: Any = str) -> Place:
        """At the TCP endpoints; `change`: what becomes of each."""
        metaserver, router = change(self.cluster.metaserver_endpoint), change(self.cluster.router_endpoint)
        b = change(self.b)
        return Place(f"--metaserver {metaserver} --tier {b}", f"--tier {b}", f"--router {router}", more)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Keyed]:
    folder, shared = (Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}" for _ in range(2))  # ipc paths are short
    folder.mkdir(mode=0o700)
    shared.mkdir()
    shared.chmod(0o755)
    made = Keyed(folder, shared)
    try:
        with made.cluster:
            made.cluster.wait_ready()
            router = made.cluster.router_endpoint
            until("the router", lambda: answers(router, Keyring(Role.OPERATOR, made.listed, None)))
            nodes = made.nodes()
            made.b = nodes.requests[list(nodes.nodes).index("b")]
            yield made
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def answers(endpoint: str, ring: Keyring | None) -> bool:
    try:
        return isinstance(ask(endpoint, operate.Ping(), 1.0, ring), operate.Pong)
    except PegaflowError:
        return False


def sure(rows: Sequence[Row], place: Place, keyed: Keyed, timeout: str, first: bool = False) -> list[Ended]:
    """All of them; those that could not say why there was no answer, as on a machine that is busy, again with more time."""
    ended = command_table.run(rows, place, keyed.values, lambda _: timeout, first)
    unsure = [one for one in ended if ErrorCode.DEADLINE in one.out + one.error or one.code != one.row.barred]
    return [one for one in ended if one not in unsure] + command_table.again(unsure, "12s")


def check(ended: Sequence[Ended], codes: dict[Row, int], *said: str) -> None:
    """Each command said all of this, wherever it says what is wrong."""
    found = complaints(ended, codes)
    for one in ended:
        missing = [text for text in said if text not in one.error + one.out]
        if codes[one.row] != 0 and missing and one.output not in ("jsonl", "prometheus"):
            found.append(f"does not say {missing}: {one.shown}")
    assert not found, "\n".join(found)


def barred(rows: Sequence[Row]) -> dict[Row, int]:
    return {row: row.barred for row in rows}


def todo(access: Access) -> str:
    return ADVICE[access].partition(";")[0]


# --- wrong key -------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_listed(keyed: Keyed) -> None:
    place = keyed.place(f"--curve-key-file {keyed.unlisted}")
    ended = sure(ASKING, place, keyed, "1s")
    ours = Keyring(Role.OPERATOR, keyed.unlisted, None).public_hex
    check(ended, barred(ASKING), Access.KEY_REFUSED)
    spoken = [one for one in ended if leaf_of(one.row).option != "--format"]
    assert all(f"{ours[:8]}…" in one.error and todo(Access.KEY_REFUSED) in one.error for one in spoken)


def test_a_key_of_another_role(keyed: Keyed) -> None:
    ended = command_table.run(ASKING, keyed.place(f"--curve-key-file {keyed.engine}"), keyed.values)
    check(ended, {row: row.role for row in ASKING}, "forbidden")


def test_the_right_key_opens(keyed: Keyed) -> None:
    """Else the tests around this one would say nothing."""
    rows = [row for row in WAYS if row.healthy == 0]
    ended = command_table.run(rows, keyed.place(f"--curve-key-file {keyed.listed}"), keyed.values, first=True)
    assert not complaints(ended, dict.fromkeys(rows, 0))


def test_a_key_behind_the_endpoint_that_is_not_the_services(keyed: Keyed) -> None:
    other = new_pair()[0]
    place = keyed.place(f"--curve-key-file {keyed.listed}", lambda endpoint: f"{without_key(endpoint)}#{other}")
    ended = sure(WAYS, place, keyed, "2s", first=True)
    check(ended, barred(WAYS), Access.WRONG_SERVER_KEY)


def test_no_key_where_one_is_needed(keyed: Keyed) -> None:
    ended = sure(WAYS, keyed.place("", without_key), keyed, "2s", first=True)
    check(ended, barred(WAYS), Access.KEY_NEEDED)


def test_a_key_where_there_are_none(keyed: Keyed) -> None:
    at = f"tcp://127.0.0.1:{free_port()}"
    more = [flag for name in ("events", "control") for flag in (f"--{name}", f"tcp://127.0.0.1:{free_port()}")]
    plain = Process("pegaflow.services.metaserver", "--requests", at, *more, "--health-port", "0")
    try:
        until("it answers", lambda: answers(at, None))
        url = f"{at}#{new_pair()[0]}"
        place = Place(f"--metaserver {url}", f"--tier {url}", f"--router {url}", f"--curve-key-file {keyed.listed}")
        ended = sure(WAYS, place, keyed, "2s", first=True)
        check(ended, barred(WAYS), Access.NO_KEYS)
    finally:
        plain.stop()


def test_events_that_a_role_may_not_hear(keyed: Keyed) -> None:
    """A router may ask for the nodes, and not listen to tiers; a subscriber that is refused hears nothing, for ever."""
    nodes = keyed.nodes()
    router = keyed.keys.file(Role.ROUTER, listed=False)
    listed = next(path for path in keyed.keys.allowed.parent.glob("router-*") if path != router)
    events = " ".join(f"--events {url}" for url in nodes.events)
    row = Row("monitor", 0, 0, 0, 1, 1)
    place = Place(events, "", "", f"--curve-key-file {listed}")
    check(sure([row], place, keyed, "1s"), {row: 1}, Access.KEY_REFUSED)


# --- no permission ---------------------------------------------------------------------------------------------------------


@contextmanager
def another_user(*shut: Path) -> Iterator[None]:
    """What follows may not reach into these folders, which are this user's and 0700.

    Root becomes nobody, for whom that is so; anybody else shuts them for himself.
    """
    if os.getuid() == 0:
        os.setresgid(NOBODY, NOBODY, 0)
        os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
        return
    for folder in shut:
        folder.chmod(0)
    try:
        yield
    finally:
        for folder in shut:
            folder.chmod(0o700)


def test_a_socket_that_this_user_may_not_open(keyed: Keyed) -> None:
    a, b = (keyed.cluster.endpoint(node) for node in "ab")
    assert told(a)["state"] == "ready"
    place = Place(f"--tier {a} --tier {b}", f"--tier {b}", f"--router {b}")
    rows = [row for row in ASKING if name_of(row) != "catalogue resync"]  # which asks metaservers only
    assert main(["config", "show"]) == 0, "whatever it imports only when it needs it"
    with another_user(keyed.cluster.folder):
        ended = sure(rows, place, keyed, "1s")
    check(ended, barred(rows), Access.NO_PERMISSION, todo(Access.NO_PERMISSION))


def wrong_files(keyed: Keyed) -> dict[str, Path]:
    """Name of the fault → file."""
    made = {name: keyed.shared / name for name in ("damaged", "short", "open", "none", "folder", "binary")}
    for name, text in (("damaged", "x" * 64), ("short", new_pair()[1][:-1]), ("open", new_pair()[1])):
        made[name].unlink(missing_ok=True)
        write_secret(made[name], text)
    made["open"].chmod(0o644)
    made["folder"].mkdir(exist_ok=True)
    made["binary"].write_bytes(bytes(range(256)))
    made["binary"].chmod(0o600)
    return made


USAGE = {row: 3 if row.words[0] == "check" else 2 for row in TABLE}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("damaged", "64 hex digits"),
        ("short", "64 hex digits"),
        ("open", "chmod 0600"),
        ("none", "No such file"),
        ("folder", "is no file"),
        ("binary", "is no text"),
    ],
)
def test_a_key_file_that_cannot_be_used(keyed: Keyed, fault: str, said: str) -> None:
    file = wrong_files(keyed)[fault]
    rows = ASKING if fault == "damaged" else WAYS
    ended = command_table.run(rows, keyed.place(f"--curve-key-file {file}"), keyed.values, first=fault != "damaged")
    check(ended, {row: USAGE[row] for row in rows}, said, str(file))


def test_files_that_this_user_may_not_read(keyed: Keyed) -> None:
    folder = keyed.cluster.folder
    config = folder / "config.toml"
    config.write_text("[cli]\n")
    configs = [row for row in TABLE if leaf_of(row).has_config and row.barred != 2]
    with another_user(folder):
        by_key = command_table.run(ASKING, keyed.place(f"--curve-key-file {keyed.listed}"), keyed.values)
        by_config = command_table.run(configs, keyed.place(f"--config {config}"), keyed.values)
    check(by_key, {row: USAGE[row] for row in ASKING}, f"{keyed.listed}: Permission denied")
    check(by_config, {row: USAGE[row] for row in configs}, f"{config}: Permission denied")


def test_a_key_of_another_user(keyed: Keyed) -> None:
    """Readable, 0600, and not ours: only root can make one, and only root's own is taken."""
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    file = keyed.shared / "theirs"
    write_secret(file, new_pair()[1])
    os.chown(file, NOBODY, NOBODY)
    ended = command_table.run(WAYS, keyed.place(f"--curve-key-file {file}"), keyed.values, first=True)
    check(ended, {row: USAGE[row] for row in WAYS}, f"belongs to user {NOBODY}")


def test_folders_that_this_user_may_not_write(keyed: Keyed, capsys: pytest.CaptureFixture[str]) -> None:
    folder = keyed.cluster.folder
    at = f"--metaserver {keyed.cluster.metaserver_endpoint} --curve-key-file {keyed.listed} --timeout 20s"
    key = Keyring(Role.OPERATOR, keyed.listed, None)
    copy = keyed.shared / "copy"  # which nobody may read
    copy.unlink(missing_ok=True)
    write_secret(copy, keyed.listed.read_text())
    if os.getuid() == 0:
        os.chown(copy, NOBODY, NOBODY)
    at = at.replace(str(keyed.listed), str(copy))
    with another_user(folder):
        for line, said in (
            (f"dump -o {folder}/dump.json {at}", f"not_written: {folder}/dump.json: Permission denied"),
            (f"keys gen {folder}/mine.key --role operator", f"{folder}/mine.key: Permission denied"),
            (f"keys show {folder}/secret --role operator", f"{folder}/secret: Permission denied"),
        ):
            code = main(line.split())
            out, error = capsys.readouterr()
            assert (code, out) == (1, "") and said in error, (line, code, out, error)
    assert answers(keyed.cluster.metaserver_endpoint, key), "whoever was refused has hurt nobody"
    assert not (folder / "dump.json").exists() and not (folder / "mine.key").exists()
