"""The tool's smaller parts, without any service: rates, thresholds, messages out of JSON, secrets, completion, configuration."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.config import resolve
from pegaflow.common.live_config import options_of
from pegaflow.common.secrets import REMOVED, without_secrets
from pegaflow.common.wire.messages import catalogue, space
from pegaflow.services.cli.__main__ import build, main
from pegaflow.services.cli.completion import SHELLS, places
from pegaflow.services.cli.configuration import clashes
from pegaflow.services.cli.ping import quantile
from pegaflow.services.cli.prompt import parse
from pegaflow.services.cli.rates import rates
from pegaflow.services.cli.send import LOOKS, made
from pegaflow.services.cli.target import UsageError
from pegaflow.services.cli.thresholds import Measure, State, judged, nagios, prometheus, worst
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig
from wire_samples import MESSAGES

# --- rates -----------------------------------------------------------------------------------------------------------


def told(**counts: int) -> dict[str, Any]:
    return {"counts": counts, "pool_bytes": 100, "free_bytes": 25, "state": "ready", "leases": 3, "sessions": []}


def test_what_happened_between_two_looks() -> None:
    before = told(asked_pages=10, hit_pages=10, lookups=1, sealed=5, sealed_bytes=500, lookup_us=7)
    after = told(asked_pages=110, hit_pages=90, hit_remote=30, hit_disk=10, lookups=5, sealed=9, sealed_bytes=900, lookup_us=4007)
    found = rates(before, after, 2.0)
    assert (found["hit"], found["hit_memory"], found["hit_remote"], found["hit_disk"]) == (0.8, 0.4, 0.3, 0.1)
    assert (found["lookups_per_s"], found["loaded_pages_per_s"], found["saved_pages_per_s"]) == (2.0, 40.0, 2.0)
    assert (found["moved_bytes_per_s"], found["lookup_ms"], found["pool_used"], found["leases_open"]) == (200, 1.0, 0.75, 3)


def test_nothing_asked_is_no_hit_rate() -> None:
    found = rates(told(), told(), 1.0)
    assert found["hit"] is None and found["lookup_ms"] is None and found["lookups_per_s"] == 0.0


@pytest.mark.parametrize("junk", [{}, {"counts": 7, "pool_bytes": "x"}, {"counts": {"lookups": "x"}, "leases": [1, 2]}])
def test_a_status_of_another_shape_is_no_crash(junk: dict[str, Any]) -> None:
    rates(junk, junk, 0.0)


def test_quantiles_are_values_that_were_seen() -> None:
    assert [quantile([1.0, 2.0, 3.0, 9.0], at) for at in (0.0, 0.5, 0.99, 1.0)] == [1.0, 3.0, 9.0, 9.0]
    assert quantile([], 0.5) is None


# --- thresholds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "state"), [(0.9, 0), (1.0, 1), (1.9, 1), (2.0, 2), (99.0, 2)])
def test_a_threshold_is_the_first_value_that_is_not_well(value: float, state: int) -> None:
    assert judged(Measure("tier", "a", value), 1.0, 2.0).state == state


def test_the_worst_counts_and_nothing_is_unknown() -> None:
    states = [Measure("t", "a", 1.0, state) for state in (State.WARNING, State.UNKNOWN, State.CRITICAL)]
    assert worst(states) is State.CRITICAL
    assert worst(states[:2]) is State.UNKNOWN
    assert worst(states[:1]) is State.WARNING
    assert worst([]) is State.UNKNOWN
    unknown = Measure("t", "a", None, State.UNKNOWN, "why")
    assert judged(unknown, 0.0, 0.0) == unknown


def test_what_monitors_read() -> None:
    measures = [Measure("tier", "a", 1.5, State.WARNING), Measure("tier", 'b"', None, State.CRITICAL, "deadline: a|b")]
    assert nagios("ping", "ms", measures, 1.0, 2.0) == (
        "PEGAFLOW PING CRITICAL - tier a: 1.5ms; tier b\": deadline: a/b | 'tier a'=1.5ms;1;2"
    )
    assert nagios("ping", "ms", [], 1.0, 2.0) == "PEGAFLOW PING UNKNOWN - nothing to measure"
    text = prometheus("ping", "ms", measures)
    assert 'pegaflow_check_ping_state{service="tier",node="b\\""} 2' in text
    assert 'pegaflow_check_ping_milliseconds{service="tier",node="a"} 1.5' in text


# --- send ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_every_message_can_be_written_as_json(message: Any) -> None:
    fields = {}
    for name in [field.name for field in dataclasses.fields(message)]:
        value = getattr(message, name)
        if isinstance(value, bytes):
            value = value.hex()
        elif isinstance(value, array):
            value = value.tolist()
        elif isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
            value = [key.hex() for key in value]
        fields[name] = value
    assert made(message.KIND, json.dumps(fields)) == message


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("pinng", "{}", "no kind 'pinng'"),
        ("probe", "[", "no JSON"),
        ("probe", "[]", "no JSON object"),
        ("probe", "[" * 100_000, "no JSON"),
        ("probe", "{}", "needs the field keys"),
        ("probe", '{"keys": ["0g"]}', "probe.keys"),
        ("probe", '{"keys": ["00", "0000"]}', "probe"),
        ("probe", '{"keyz": []}', "no field keyz; it has: keys"),
        ("log_level", '{"level": 7}', "log_level"),
        ("unpin", '{"lease": -1}', "unpin"),
        ("release", '{"session": 1, "token": "", "leases": [-1]}', "release.leases"),
    ],
)
def test_what_does_not_fit_a_message(kind: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(kind, text)
    assert said in str(caught.value)


def test_what_changes_something_asks_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("probe", '{"keys": ["00ff"]}') == space.Probe([b"\x00\xff"])
    assert made("nodes", "{}") == catalogue.Nodes()
    assert not LOOKS & {"drain", "node_drain", "log_level", "keep", "unkeep", "pin", "sync", "disk_speed", "engine_add", "resync"}
    assert main(["send", "node_drain", "--tier", "tcp://127.0.0.1:1"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["send", "ping", "--tier", "tcp://127.0.0.1:1", "--tier", "tcp://127.0.0.1:2"]) == 2


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_removed_wherever_they_stand() -> None:
    found = without_secrets(
        {
            "token": "hush",
            "tokens": 7,
            "curve_key_file": "/etc/key",
            "none_hash": "0f",
            "requests": f"tcp://h:1#{'a' * 64}",
            "store": "redis://user:hush@hush@h:1/0",
            "deep": [{"engine_api_key": "hush", "text": "Authorization: Bearer hush-hush"}],
            "options": [{"name": "engine_api_key", "value": "hush"}, {"name": "pool_size", "value": 1}],
        }
    )
    assert "hush" not in json.dumps(found)
    assert found["tokens"] == 7 and found["curve_key_file"] == "/etc/key" and found["none_hash"] == "0f"
    assert found["requests"].endswith("a" * 64)
    assert found["store"] == f"redis://{REMOVED}@h:1/0"
    assert found["options"][1]["value"] == 1


def test_options_show_no_secret() -> None:
    argv = ["--engine", "http://e:1", "--engine-api-key", "hush"]
    router = resolve(RouterConfig, section="router", argv=argv)
    metaserver = resolve(MetaserverConfig, section="metaserver", argv=["--store", "redis://u:hush@h:1/0"])
    for one in (router, metaserver):
        shown = options_of(one.value, one.sources)
        assert "hush" not in json.dumps(shown)
    assert {"name": "engine_api_key", "value": "(set)", "source": "command line", "reloadable": False} in options_of(
        router.value, router.sources
    )


# --- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_of_the_whole_tree_and_the_shell_takes_it(shell: str, tmp_path: Path) -> None:
    text = SHELLS[shell](places(build()))
    for word in ("status", "drain", "latency", "completion"):
        assert word in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    file = tmp_path / "completion"
    file.write_text(text)
    subprocess.run([shell, "-n", str(file)], check=True, timeout=30)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pegaflow", ""], {"status", "doctor", "node"}),
        (["pegaflow", "no"], {"node", "nodes"}),
        (["pegaflow", "node", ""], {"show", "drain", "undrain"}),
        (["pegaflow", "node", "drain", "--h"], {"--help", "--hand-over"}),
        (["pegaflow", "--debug", "check", "la"], {"latency"}),
        (["pegaflow", "completion", "z"], {"zsh"}),
    ],
)
def test_what_bash_offers(words: list[str], offered: set[str]) -> None:
    script = SHELLS["bash"](places(build()))
    line = " ".join(f"'{word}'" for word in words)
    ask = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _pegaflow; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    found = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True, timeout=30).stdout.split()
    assert offered <= set(found) and all(word.startswith(words[-1]) for word in found)


# --- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[1, 2, 3]", '{"prompt_token_ids": [1, 2, 3], "x": 1}', "1 2\n3", "1; [2], 3"])
def test_token_ids(text: str) -> None:
    assert parse(text) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100_000 + "1" + "]" * 100_000, "nested too deeply"),
        ("9" * 10_000, "expected 1 to"),
        ("[" + "9" * 10_000 + "]", "expected 1 to"),
        ("[-1]", "expected 1 to"),
        ("[true]", "expected 1 to"),
        ("hello", "neither JSON"),
        ("", "expected 1 to"),
    ],
)
def test_what_is_no_list_of_token_ids(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    assert main(["page", "find", "--tokens", str(file), "--tier", "tcp://127.0.0.1:1", "--timeout", "50ms"]) == 2
    assert said in capsys.readouterr().err


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PEGAFLOW_CONFIG", raising=False)
    return tmp_path / "c.toml"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("[tier]\n[metaserver]\n", 0, "config ok: tier, metaserver"),
        ("[tier]\nevict_hihg = 1\n", 78, "did you mean evict_high?"),
        ("[teir]\n", 78, "did you mean tier?"),
        ("[tier]\nevict_low = 0.9\nevict_high = 0.8\n[metaserver]\nstore = 'x'\n", 78, "evict_low 0.9"),
        ("[tier\n", 78, "line 1"),
        ("[tier]\nhealth_port = 7400\n[metaserver]\nhealth_host = '127.0.0.1'\n", 78, "both port 7400 of 127.0.0.1"),
        ("[tier]\nmetaserver = ['tcp://127.0.0.1:7499']\n[metaserver]\n", 78, "metaserver is tcp://127.0.0.1:7499"),
        ("[router]\nengine = ['http://e:1']\n", 0, "config ok: router"),
        ("[watch]\nprogram = ['tier-a=http://h:1/health']\n[tier]\n", 0, "config ok: tier, watch"),
        ("[watch]\nprogram = ['tier-a']\n", 78, "expected PROGRAM="),
    ],
)
def test_config_check(file: Path, text: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text)
    assert main(["config", "check", "--config", str(file)]) == code
    out, error = capsys.readouterr()
    assert said in out + error
    assert bool(error) == bool(code)


def test_config_show(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('[tier]\npool_size = "1GiB"\nscrub_rate = 0\n')
    assert main(["config", "show", "--changed", "-o", "jsonl", "--config", str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    source = f"file {file}"
    assert rows == [
        {"service": "tier", "node": None, "name": "pool_size", "value": 1 << 30, "source": source, "reloadable": False},
        {"service": "tier", "node": None, "name": "scrub_rate", "value": 0, "source": source, "reloadable": True},
    ]


@pytest.mark.parametrize("verb", ["check", "show"])
@pytest.mark.parametrize("service", [[], ["--service", "tier"]])
def test_a_file_that_cannot_be_read_is_wrong_usage(
    file: Path, verb: str, service: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", verb, "--config", str(file), *service]) == 2
    assert f"{file}: No such file" in capsys.readouterr().err


def test_tables_that_fit_together() -> None:
    tier = resolve(TierConfig, section="tier", argv=["--metaserver", "tcp://127.0.0.1:7400"]).value
    metaserver = resolve(MetaserverConfig, section="metaserver").value
    assert clashes({"tier": tier, "metaserver": metaserver}) == []
