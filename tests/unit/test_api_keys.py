"""Keys: how a file of them is read, and that none is ever shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pegaflow.common.config import resolve
from pegaflow.services.router.api_keys import ApiKeys, BadKeys, bearer
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.router.open_secrets import warn_of_open_secrets


def test_names_and_keys() -> None:
    keys = ApiKeys.parse("\n# a comment\nteam-a:sk-one\n  team-b : sk-two  \nsk-three\nteam-a:sk-four\nteam-c:a:b\n")
    assert [keys.name_of(f"sk-{n}") for n in ("one", "two", "three", "four")] == ["team-a", "team-b", "line5", "team-a"]
    assert keys.name_of("a:b") == "team-c"
    for wrong in ("", "sk-", "sk-on", "sk-one ", "SK-ONE", "team-a", "team-a:sk-one", "# a comment", "sk-öne", "\ud800"[:0]):
        assert keys.name_of(wrong) is None
    assert keys.names == {"team-a", "team-b", "team-c", "line5"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no key"),
        ("# only a comment\n\n", "no key"),
        ("a:sk-secret\n:sk-other", "line 2"),
        ("a:", "line 1"),
        ("a:sk secret", "line 1"),
        ("ä:sk-secret", "line 1"),
        ("a:sk-secret\nb:sk-secret", "line 2"),
    ],
)
def test_a_bad_file_is_told_by_its_line_and_never_by_its_key(text: str, complaint: str) -> None:
    with pytest.raises(BadKeys, match=complaint) as caught:
        ApiKeys.parse(text)
    assert "secret" not in str(caught.value)


def test_the_same_line_twice_is_one_key() -> None:
    assert len(ApiKeys.parse("a:k\na:k").digests) == 1


def test_neither_the_object_nor_its_parts_hold_a_key() -> None:
    assert "sk-one" not in repr(ApiKeys.parse("a:sk-one"))


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(BadKeys, match=r"keys: No such file"):
        ApiKeys.read(path)
    path.write_bytes(b"a:\xff")
    with pytest.raises(BadKeys, match="not UTF-8"):
        ApiKeys.read(path)
    path.write_bytes(b"a:k\r\nb:l\r\n")
    assert ApiKeys.read(path).name_of("l") == "b"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([b"Bearer k"], "k"),
        ([b"bearer   k "], "k"),
        ([b"BEARER k"], "k"),
        ([], None),
        ([b""], None),
        ([b"Bearer"], None),
        ([b"Bearer "], None),
        ([b"Basic k"], None),
        ([b"k"], None),
        ([b"Bearer k", b"Bearer k"], None),
        ([b"Bearer \xff"], "ÿ"),
    ],
)
def test_bearer(values: list[bytes], key: str | None) -> None:
    assert bearer(values) == key


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)])
def test_a_file_that_others_can_read_is_used_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_open: bool
) -> None:
    path = tmp_path / "keys"
    path.write_text("a:sk-secret")
    path.chmod(mode)
    config = resolve(RouterConfig, section="router", argv=["--engine", "http://h:1", "--api-keys-file", str(path)]).value
    with caplog.at_level(logging.WARNING):
        warn_of_open_secrets(config)
    told = [vars(record)["pegaflow_fields"] for record in caplog.records if record.getMessage() == "secret_open"]
    assert [(one["code"], one["option"]) for one in told] == [("unsafe_path", "api_keys_file")] * is_open
    assert all(str(path) in one["text"] and "sk-secret" not in one["text"] for one in told)
