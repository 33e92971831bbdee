"""Which upstreams may be connected to."""

from __future__ import annotations

import pytest
from pegaflow.common.config import ConfigError, resolve
from pegaflow.services.router.allowed import Allowed, HostPort
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.steps import Role


@pytest.mark.parametrize(
    ("text", "upstream"),
    [("a:1", ("a", 1)), ("A.b:65535", ("a.b", 65535)), ("[::1]:8", ("::1", 8)), (" 10.0.0.1:80 ", ("10.0.0.1", 80))],
)
def test_host_and_port(text: str, upstream: tuple[str, int]) -> None:
    assert HostPort.parse(text) == upstream


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:x", "a:65536", "a:-1", "u@a:1", "a:1/x", "a:1?x", "http://a:1", "::1:8", "[::1"]
)
def test_no_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        HostPort.parse(text)


def test_the_engines_or_what_is_listed() -> None:
    engines = ["http://a:1", "https://B", "http://c/base", "http://[::1]:7"]
    assert Allowed.of(engines, []).upstreams == {("a", 1), ("b", 443), ("c", 80), ("::1", 7)}
    assert HostPort("a", 2) not in Allowed.of(engines, [])
    grown = Allowed.of(engines, [])
    grown.admit("http://new:5")
    assert HostPort("new", 5) in grown
    listed = [HostPort("a", 1), HostPort("x", 9)]
    assert Allowed.of(["http://a:1"], listed).upstreams == set(listed)
    with pytest.raises(ValueError, match=r"http://c/base is not among allow_upstream: a:1, x:9"):
        Allowed.of(["http://a:1", "http://c/base"], listed)
    with pytest.raises(ValueError, match="is not among"):
        Allowed(listed).admit("http://b:1")


@pytest.mark.parametrize(
    "argv",
    [
        ["--engine", "http://a:1", "--allow-upstream", "b:1"],
        ["--engine", "http://a:1", "--allow-upstream", "b"],
        ["--engine", "http://a:99999"],
        ["--engine", "http://user:word@a:1"],
        ["--engine", "http://a:1", "--tls-cert", "x"],
        ["--engine", "http://a:1", "--api-keys-file", "/nowhere"],
        ["--engine", "http://a:1", "--max-requests-per-key", "-1"],
    ],
)
def test_config_errors(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        resolve(RouterConfig, section="router", argv=argv)


def test_engines_that_come_later_are_on_the_list_or_nothing_changes() -> None:
    engines = Engines({Role.ENGINE: ["http://a:1"]})
    engines.admit = Allowed([HostPort("a", 1), HostPort("b", 1)]).admit
    assert engines.add(Role.ENGINE, "http://b:1")
    with pytest.raises(ValueError, match="http://c:1 is not among allow_upstream: a:1, b:1"):
        engines.add(Role.ENGINE, "http://c:1")
    with pytest.raises(ValueError, match="is not among"):
        engines.become({Role.ENGINE: ["http://c:1"]})
    assert engines.names(Role.ENGINE) == ["http://a:1", "http://b:1"]
