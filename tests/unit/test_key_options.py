"""What the options for keys allow, of every service: a config error has its code, exit 78, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from keys import Keys
from pegaflow.common.bus.key_list import key_line, parse_keys
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.roles import ASKS, HEARS, Identity, Role, may_ask, may_hear
from pegaflow.common.wire.codec import kinds
from pegaflow.common.wire.errors import LocalError
from pegaflow.common.wire.messages import attach  # noqa: F401, registers the kinds
from pegaflow.connector.keys import refuse_strangers
from pegaflow.connector.options import StartRefused, parse_options
from pegaflow.services.cli.__main__ import main as pegaflow
from pegaflow.services.metaserver.__main__ import main as metaserver
from pegaflow.services.router.__main__ import main as router
from pegaflow.services.tier.__main__ import main as tier

Main = Callable[[Sequence[str]], int]
EX_CONFIG = 78


def ended(main: Main, flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what was said; a service that would start instead fails the test by not ending."""
    with pytest.raises(SystemExit) as told:
        main([*flags, "--check-config"])
    assert isinstance(told.value.code, int)
    return told.value.code, capsys.readouterr().err


NETWORK: list[tuple[Main, list[str]]] = [
    (tier, ["--requests", "tcp://0.0.0.0:7410", "--events", "tcp://127.0.0.1:7411"]),
    (tier, ["--requests", "tcp://127.0.0.1:7410", "--events", "tcp://10.1.2.3:7411"]),
    (tier, ["--control", "tcp://*:7412"]),
    (metaserver, ["--requests", "tcp://0.0.0.0:7400"]),
    (metaserver, ["--events", "tcp://meta.example:7400"]),
    (router, ["--engine", "http://h:1", "--control", "tcp://[::]:7403"]),
]


@pytest.mark.parametrize(("main", "flags"), NETWORK)
def test_without_keys_nobody_listens_on_a_network_unless_told_in_plain_words(
    main: Main, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(main, flags, capsys)
    assert code == EX_CONFIG and "plaintext_network" in said and "keys gen" in said
    assert ended(main, [*flags, "--allow-plaintext-network"], capsys)[0] == 0


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:7410", "tcp://127.9.9.9:*", "tcp://[::1]:7410", "tcp://localhost:7410"])
def test_loopback_needs_no_keys(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(tier, ["--requests", endpoint, "--events", "tcp://127.0.0.1:*"], capsys)[0] == 0


def test_wrong_keys_are_config_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = Keys(tmp_path)
    good, loose = keys.file(Role.TIER), keys.file(Role.TIER)
    loose.chmod(0o644)
    (tmp_path / "nonsense").write_text("what\n")
    (tmp_path / "nonsense").chmod(0o644)
    writable = tmp_path / "writable"
    writable.write_text(keys.allowed.read_text())
    writable.chmod(0o666)
    key, lists = "--curve-key-file", "--curve-allowed"
    for flags, expected in (
        ([key, str(loose), lists, str(keys.allowed)], "unsafe_path"),
        ([key, str(tmp_path / "none"), lists, str(keys.allowed)], "unsafe_path"),
        ([key, str(tmp_path), lists, str(keys.allowed)], "unsafe_path"),
        ([key, "/dev/zero", lists, str(keys.allowed)], "unsafe_path"),
        ([key, str(good), lists, str(tmp_path / "nonsense")], "bad_config"),
        ([key, str(good), lists, str(tmp_path / "none")], "bad_config"),
        ([key, str(good), lists, str(writable)], "unsafe_path"),
        ([key, str(good)], "bad_config"),
        ([lists, str(keys.allowed)], "bad_config"),
    ):
        code, said = ended(metaserver, ["--requests", "tcp://0.0.0.0:7400", *flags], capsys)
        assert code == EX_CONFIG and expected in said, (flags, said)
    assert ended(metaserver, ["--requests", "tcp://0.0.0.0:7400", key, str(good), lists, str(keys.allowed)], capsys)[0] == 0


def test_with_a_key_every_endpoint_that_is_connected_to_has_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = Keys(tmp_path)
    own = ["--curve-key-file", str(keys.file(Role.TIER)), "--curve-allowed", str(keys.allowed)]
    server = keys.client(Role.METASERVER).public_hex
    for endpoint, flags, good in (
        (f"tcp://127.0.0.1:7400#{server}", own, True),
        ("tcp://127.0.0.1:7400", own, False),
        (f"tcp://127.0.0.1:7400#{server}", [], False),
        (f"tcp://127.0.0.1:7400#{server[:-1]}", own, False),
        ("tcp://127.0.0.1:7400", [], True),
    ):
        tcp = ["--requests", "tcp://127.0.0.1:*", "--events", "tcp://127.0.0.1:*"]
        assert (ended(tier, ["--metaserver", endpoint, *tcp, *flags], capsys)[0] == 0) is good, (endpoint, flags)


def test_with_a_key_no_ipc_path_is_told_to_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no key, and who is told of it would connect to whatever lies there on his own machine."""
    keys = Keys(tmp_path)
    own = ["--curve-key-file", str(keys.file(Role.TIER)), "--curve-allowed", str(keys.allowed)]
    away = f"tcp://127.0.0.1:7400#{keys.client(Role.METASERVER).public_hex}"
    tcp = ["--requests", "tcp://127.0.0.1:7410", "--events", "tcp://127.0.0.1:7411"]
    code, said = ended(tier, ["--metaserver", away, *own], capsys)
    assert code == EX_CONFIG and "bad_endpoint" in said and "requests" in said and "tcp://" in said
    assert ended(tier, ["--metaserver", away, *tcp, *own], capsys)[0] == 0, "control may: operators of that machine use it"
    assert ended(tier, own, capsys)[0] == 0, "nobody is told"
    assert ended(tier, ["--metaserver", f"ipc://{tmp_path}/m.sock", *own], capsys)[0] == 0, "and all others are on this machine"
    assert ended(tier, ["--metaserver", "tcp://127.0.0.1:7400"], capsys)[0] == 0, "nor is there a key to get around"


def test_a_list_is_a_file_or_a_folder_of_lines(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    one, two = keys.client(Role.TIER, "a"), keys.client(Role.OPERATOR)
    (folder / "a.pub").write_text(f"# node a\n\n  {one.public_hex.upper()}\ttier  a  # rack 3\n")
    (folder / "b.pub").write_text(key_line(Identity(two.public_hex, Role.OPERATOR)) + "\n")
    (folder / "c.txt").write_text("not a list\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    ring = Keyring(Role.TIER, keys.file(Role.TIER), folder)
    assert dict(ring.listed) == {
        one.public_hex: Identity(one.public_hex, Role.TIER, "a"),
        two.public_hex: Identity(two.public_hex, Role.OPERATOR),
    }
    (folder / "d.pub").write_text((folder / "b.pub").read_text())
    (folder / "d.pub").chmod(0o644)
    with pytest.raises(LocalError, match="listed twice"):
        ring.reload()


@pytest.mark.parametrize(
    "line",
    [
        "abc tier",
        "0" * 64,
        f"{'0' * 64} king",
        f"{'0' * 64} tier a b",
        f"{'g' * 64} tier",
        f"{'0' * 64} tier\n{'0' * 64} operator",
    ],
)
def test_lines_that_say_nothing(line: str) -> None:
    with pytest.raises(ValueError, match=r"list:\d"):
        parse_keys(line, "list")


def test_an_engine_has_a_key_for_tcp_and_none_for_ipc(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    own, server = keys.file(Role.ENGINE), keys.client(Role.TIER).public_hex
    for tier_at, file, good in (
        (f"tcp://10.0.0.1:7410#{server}", str(own), True),
        ("tcp://10.0.0.1:7410", str(own), False),
        (f"tcp://10.0.0.1:7410#{server}", None, False),
        ("ipc:///run/pegaflow/requests.sock", str(own), True),
        ("ipc:///run/pegaflow/requests.sock", None, True),
        ("ipc:///run/pegaflow/requests.sock", str(tmp_path / "none"), False),
    ):
        extra = {"pegaflow.tier": tier_at, "pegaflow.runtime_dir": str(tmp_path / "run")} | (
            {"pegaflow.curve_key_file": file} if file else {}
        )
        if good:
            refuse_strangers(parse_options(extra, {}))
            continue
        with pytest.raises(StartRefused) as told:
            refuse_strangers(parse_options(extra, {}))
        assert told.value.code in ("bad_endpoint", "unsafe_path")
    (tmp_path / "run").chmod(0o770)
    with pytest.raises(StartRefused, match="chmod 0700"):
        refuse_strangers(parse_options({"pegaflow.runtime_dir": str(tmp_path / "run")}, {}))


def test_the_tables_name_kinds_that_there_are_and_default_to_the_operator() -> None:
    for service, table in ASKS.items():
        assert table.keys() <= set(kinds())
        assert all(roles for roles in table.values())
        for kind in ("drain", "dump", "status", "log_level", "engine_add", "engine_remove", "grant", "delta"):
            assert [role for role in Role if may_ask(service, role, kind)] == [Role.OPERATOR]
        assert all(may_ask(service, role, "ping") for role in Role)
    assert [role for role in Role if may_ask(Role.TIER, role, "pin")] == [Role.TIER]
    assert [role for role in Role if may_ask(Role.METASERVER, role, "hello")] == [Role.TIER]
    assert not any(may_ask(Role.METASERVER, Role.ENGINE, kind) for kind in kinds() if kind != "ping")
    assert not any(may_hear(service, Role.ENGINE) for service in HEARS)


def test_keys_are_made_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, public = tmp_path / "n1.key", tmp_path / "n1.key.pub"
    assert pegaflow(["keys", "gen", str(secret), "--role", "tier", "--node", "n1"]) == 0
    line = capsys.readouterr().out
    assert public.read_text() == line
    assert secret.stat().st_mode & 0o777 == 0o600 and public.stat().st_mode & 0o022 == 0
    ring = Keyring(Role.TIER, secret, public)
    assert dict(ring.listed) == {ring.public_hex: Identity(ring.public_hex, Role.TIER, "n1")}
    assert secret.read_text().strip() not in line
    assert pegaflow(["keys", "show", str(secret), "--role", "tier", "--node", "n1"]) == 0
    assert capsys.readouterr().out == line
    before = secret.read_text()
    assert pegaflow(["keys", "gen", str(secret), "--role", "tier"]) == 1, "a secret is never overwritten"
    assert secret.read_text() == before and "exists" in capsys.readouterr().err
    secret.unlink()
    assert pegaflow(["keys", "gen", str(secret), "--role", "tier"]) == 1, "nor a public one"
    assert not secret.exists()
    assert pegaflow(["keys", "gen", str(tmp_path / "no" / "k"), "--role", "tier"]) == 1
    assert pegaflow(["keys", "gen", str(tmp_path / "k"), "--role", "tier", "--node", "a b"]) == 2
