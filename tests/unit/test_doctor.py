"""What the doctor finds in which facts, and that a healthy deployment has no finding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pegaflow.services.cli.access import ADVICE, BARRED, Access
from pegaflow.services.cli.departed import Departed
from pegaflow.services.cli.doctor.diagnosis import diagnose
from pegaflow.services.cli.doctor.finding import Finding
from pegaflow.services.cli.doctor.fingerprints import rows
from pegaflow.services.cli.doctor.naming import differing
from pegaflow.services.cli.doctor.patient import Absent, Patient, Reachability, engines

GIB = 1 << 30
FACTORS = {"model": "m" * 40, "none_hash": "00" * 32, "hash_algorithm": "sha256_cbor", "block_size": "16", "layout_0": "aa"}
VERSIONS = {"pegaflow": "0.1.0", "protocol": "1", "libzmq": "4.3.5", "kernel": "6.1"}


def tier(node: str) -> dict[str, Any]:
    return {
        "uid": 1000,
        "versions": dict(VERSIONS),
        "limits": {"memlock": None, "nofile": 65536},
        "files": 40,
        "pool_bytes": GIB,
        "huge_pages": [{"page_bytes": 2 << 20, "total": 1024, "free": 512}],
        "rdma_devices": ["mlx5_0"],
        "movers": [{"pid": 1, "rdma": ["uverbs0"], "tcp": 0, "settings": {}}],
        "paths": [
            {"what": "runtime_dir", "path": "/run/p", "mode": "0700", "uid": 1000, "open_files": []},
            {"what": "pool_dir", "path": "/dev/hugepages", "mode": "0755", "uid": 0, "total_bytes": 2 * GIB},
        ],
        "endpoints": {"requests": "tcp://10.0.0.1:1", "control": "ipc:///run/p/c"},
        "options": [{"name": "curve_key_file", "value": "/etc/p/key"}],
        "engines": [
            {
                "engine": f"e-{node}",
                "fingerprint": "ab" * 16,
                "factors": dict(FACTORS),
                "versions": {"vllm": "0.32.0"},
                "complete": True,
            }
        ],
    }


def healthy() -> list[Patient]:
    return [Patient("tier", "a", tier("a")), Patient("tier", "b", tier("b"), offset_s=0.01, doubt_s=0.001)]


def findings(change: Callable[[dict[str, Any]], None]) -> list[Finding]:
    """Those of two healthy tiers of which the second is changed."""
    told = copy.deepcopy(tier("b"))
    change(told)
    return diagnose([healthy()[0], Patient("tier", "b", told)])


def test_a_healthy_deployment_has_no_finding() -> None:
    assert diagnose(healthy()) == []


def setting(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(told: dict[str, Any]) -> None:
        found: Any = told
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = to

    return change


ENGINE = ("engines", 0)
ENGINES = (("prefill", True), ("decode", False), ("engine", None))
CASES: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("hash_seed_differs", setting(*ENGINE, "factors", "none_hash", to="11" * 32), "none_hash: 0000"),
    ("hash_algorithm_differs", setting(*ENGINE, "factors", "hash_algorithm", to="sha256"), "sha256_cbor and sha256"),
    ("block_size_differs", setting(*ENGINE, "factors", "block_size", to="32"), "block_size: 16 and 32"),
    ("fingerprint_differs", setting(*ENGINE, "factors", "dtype", to="float16"), "dtype: - and float16"),
    ("fingerprint_differs", setting(*ENGINE, "factors", "layout_0", to="bb"), "layout_0: aa and bb"),
    ("fingerprint_differs", setting(*ENGINE, "fingerprint", to="cd" * 16), "all factors equal"),
    ("engine_silent", setting(*ENGINE, "stale", to=True), "shows no life"),
    ("protocol_versions_differ", setting("versions", "protocol", to="2"), "1 (tier a), 2 (tier b)"),
    ("pegaflow_versions_differ", setting("versions", "pegaflow", to="0.2.0"), "0.1.0"),
    ("vllm_versions_differ", setting(*ENGINE, "versions", "vllm", to="0.33.0"), "0.33.0 (engine e-b on b)"),
    ("few_files", setting("limits", "nofile", to=1024), "nofile 1024, 40 in use"),
    ("memlock_too_low", setting("limits", "memlock", to=8 << 20), "memlock 8MiB, pool 1GiB"),
    ("pool_does_not_fit", setting("pool_bytes", to=4 * GIB), "pool 4GiB, /dev/hugepages 2GiB"),
    ("no_huge_pages", setting("huge_pages", to=[]), "/dev/hugepages"),
    ("open_to_others", setting("paths", 0, "mode", to="0755"), "runtime_dir has mode 0755"),
    ("open_to_others", setting("paths", 0, "open_files", to=["lock 0644"]), "lock 0644"),
    (
        "key_open_to_others",
        setting("paths", 1, to={"what": "tls_key", "path": "/k", "mode": "0640", "uid": 1000}),
        "tls_key has mode 0640",
    ),
    ("foreign_owner", setting("paths", 0, "uid", to=0), "user 0"),
    ("path_unreadable", setting("paths", 0, to={"what": "disk", "path": "/d", "code": "Permission denied"}), "Permission denied"),
    ("no_curve", setting("options", to=[{"name": "curve_key_file", "value": ""}]), "requests tcp://10.0.0.1:1"),
    ("rdma_unused", setting("movers", to=[{"pid": 1, "rdma": [], "tcp": 4, "settings": {"UCX_TLS": "tcp"}}]), "UCX_TLS=tcp"),
]


@pytest.mark.parametrize(("code", "change", "what"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_one_fault_is_one_finding(code: str, change: Callable[[dict[str, Any]], None], what: str) -> None:
    (found,) = findings(change)
    assert found.code == code and what in found.what and found.todo and found.where


def test_the_odd_one_of_three_is_named() -> None:
    """Wherever it stands: which engine has another seed is the question."""
    for odd in range(3):
        told = [tier(node) for node in "abc"]
        told[odd]["engines"][0]["factors"]["none_hash"] = "11" * 32
        (found,) = diagnose([Patient("tier", node, one) for node, one in zip("abc", told, strict=True)])
        assert (found.code, found.where) == ("hash_seed_differs", f"engine e-{'abc'[odd]} on {'abc'[odd]}")
        assert found.what == f"none_hash: {'11' * 12}…, but {'00' * 12}… on 2 others"


def test_engines_that_a_router_finds_unhealthy() -> None:
    rows = [{"role": role, "url": f"http://{role}", "healthy": lives, "why": "no answer in time"} for role, lives in ENGINES]
    (found,) = diagnose([*healthy(), Patient("router", "r", {"engines": rows})])
    assert (found.code, found.where, found.what) == ("engine_unhealthy", "router r → decode http://decode", "no answer in time")


def test_a_weak_hash_is_said_of_each_engine() -> None:
    told = tier("b")
    told["engines"][0]["factors"]["hash_algorithm"] = "xxhash_cbor"
    assert [one.code for one in diagnose([Patient("tier", "b", told)])] == ["weak_hash"]


def test_engines_of_different_models_may_differ() -> None:
    assert findings(setting("engines", 0, "factors", "model", to="other")) == []


def test_clocks_count_beyond_the_doubt() -> None:
    one, two = healthy()
    far = Patient("tier", "b", two.told, offset_s=2.0, doubt_s=0.1)
    assert [found.code for found in diagnose([one, far])] == ["clocks_differ"]
    assert diagnose([one, Patient("tier", "b", two.told, offset_s=2.0, doubt_s=1.8)]) == []


def test_what_cannot_be_connected_to() -> None:
    reached = [Reachability("tier a", "requests", "tcp://10.0.0.1:1", "refused"), Reachability("m", "events", "tcp://m:1", "")]
    (found,) = diagnose([Patient("tier", "b", tier("b"), reached=reached)])
    assert (found.code, found.where, found.what) == ("unreachable", "tier b → tier a", "requests tcp://10.0.0.1:1: refused")


@pytest.mark.parametrize(
    ("control", "todo"),
    [("ipc:///run/p/c", "set its control to a tcp endpoint"), ("tcp://10.0.0.1:3", "let this machine connect")],
)
def test_what_is_not_known_is_a_finding(control: str, todo: str) -> None:
    told = tier("b") | {"endpoints": {"requests": "tcp://10.0.0.1:1", "control": control}}
    (found,) = diagnose([Patient("tier", "b", told, reach_unknown=f"{control}: wrong_epoch")])
    assert (found.severity, found.code, found.where) == ("warning", "reach_unknown", "tier b")
    assert f"{control}: wrong_epoch" in found.what and todo in found.todo
    (found,) = diagnose([Patient("tier", "b", told, disk_unknown=f"no answer from {control}")])
    assert (found.severity, found.code, found.where) == ("warning", "disk_unknown", "tier b")
    assert "a longer --timeout" in found.todo and todo in found.todo


@pytest.mark.parametrize(
    ("codes", "todo"),
    [
        (["refused", "refused"], "killed or never started"),
        (["silent", "silent"], "stopped (SIGSTOP"),
        (["", ""], "stuck, or it does not let you in"),
        (["", "refused"], "reachable from some places only"),
        (["deadline", "no_route"], "firewall"),
        (["not_here"], "killed or never started"),
    ],
)
def test_why_somebody_does_not_answer(codes: list[str], todo: str) -> None:
    seen = [(f"tier {number}", code) for number, code in enumerate(codes)]
    (found,) = diagnose(healthy(), [Absent("tier", "c", "tcp://c:1", "deadline", seen)])
    assert found.code == "no_answer" and found.where == "tier c" and todo in found.todo
    assert found.what == "tcp://c:1: deadline; " + ", ".join(f"{who}: {code or 'can connect'}" for who, code in seen)


@pytest.mark.parametrize("code", sorted(BARRED))
def test_who_does_not_let_us_in_is_not_ill(code: str) -> None:
    (found,) = diagnose(healthy(), [Absent("tier", "c", "tcp://c:1", code, [("from here", "")])])
    assert (found.code, found.where, found.what) == (code, "tier c", "tcp://c:1")
    assert found.todo == ADVICE[Access(code)] if code in list(Access) else "operator" in found.todo


def test_a_node_that_was_given_up() -> None:
    (found,) = diagnose(healthy(), lost=[Departed("c", "7", "dead", 90_000, 12)])
    assert (found.code, found.where, found.what) == ("node_lost", "tier c", "silent for 1m30s, had 12 pages")


def test_a_slow_disk() -> None:
    disk = {"write_bytes_per_s": 3 << 30, "read_bytes_per_s": 90 << 20}
    (found,) = diagnose([Patient("tier", "b", tier("b"), disk=disk)])
    assert (found.code, found.what) == ("slow_disk", "read 90MiB/s")


def test_errors_come_first() -> None:
    def change(told: dict[str, Any]) -> None:
        told["limits"]["nofile"] = 10
        told["paths"][0]["mode"] = "0777"

    assert [found.severity for found in findings(change)] == ["error", "warning"]


@pytest.mark.parametrize("junk", [None, 7, "x", [], [None, 3], {"a": 1}, True])
@pytest.mark.parametrize("field", sorted(tier("a")))
def test_fields_of_other_types_are_no_crash(field: str, junk: Any) -> None:
    diagnose([Patient("tier", "b", {**tier("b"), field: junk}), healthy()[0]])


def test_factors_side_by_side() -> None:
    told = tier("b")
    told["engines"][0]["factors"] |= {"block_size": "32"}
    found = rows(engines([healthy()[0], Patient("tier", "b", told)]))
    assert {row["factor"] for row in found if row["differs"]} == {"block_size"}
    assert [row["value"] for row in found if row["factor"] == "block_size"] == ["16", "32"]
    assert differing({"a": "1", "layout_0": "x"}, {"a": "2", "layout_0": "y"}) == ["a"]
