"""README and docs do what they say: their shell blocks are run, or as much of them is checked as can be without hardware.

Labels of blocks: see documents.py. A block may count on a metaserver at $PEGAFLOW_CLI_METASERVER, tiers a and b, engines p (on a)
and d (on b), and in the working folder, which shows the checkout, `prompt.json`: the token ids of a prompt that p has saved.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import FACTORS, FINGERPRINT, Cluster, Engine, told, until
from documents import ROOT, Block, blocks, commands, complaints, documents, mentions
from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import HashAlgorithm
from pegaflow.services.cli.verdict import Cause

pytestmark = pytest.mark.timeout(120)

BLOCKS = [block for path in documents() for block in blocks(str(path.relative_to(ROOT)), path.read_text())]
RUN = [block for block in BLOCKS if block.code is not None]


class Stage(NamedTuple):
    folder: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A working folder that looks like the checkout, so that what a block writes does not land there."""
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    shown = tmp_path_factory.mktemp("checkout")
    for entry in ROOT.iterdir():
        (shown / entry.name).symlink_to(entry)
    ids = list(range(100))
    (shown / "prompt.json").write_text(json.dumps(ids))
    scheme = KeyScheme(FINGERPRINT, 32, 16, HashAlgorithm.SHA256_CBOR, bytes.fromhex(FACTORS["none_hash"]))
    with Cluster(folder, mover=False) as cluster:
        cluster.wait_ready()
        engines = [Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()]
        keys = [bytes(key) for key in scheme.keys(ids)]
        engines[0].save(keys)
        until("sealed", lambda: told(cluster.endpoint("a"))["counts"].get("sealed") == len(keys))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PEGAFLOW_")}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        environment["PEGAFLOW_CLI_METASERVER"] = cluster.metaserver_endpoint
        environment["PEGAFLOW_CLI_TIMEOUT"] = "20s"  # this machine may be busy
        yield Stage(shown, environment)
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_does_what_it_says(stage: Stage, block: Block) -> None:
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=stage.folder,
        env=stage.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == block.code, f"{block}\n{block.text}\n{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr


def test_what_is_not_run_names_what_exists() -> None:
    found = [text for block in BLOCKS for text in complaints(block)]
    found += [text for path in documents() for text in mentions(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(found)
    assert {block.label for block in BLOCKS} >= {"sh", "sh hardware", "sh minutes"}


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    lost = []
    for path in documents():
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            at = (path.parent / name) if name else path
            if not at.exists() or (anchor and anchor not in anchors(at.read_text())):
                lost.append(f"{path.relative_to(ROOT)}: {target}")
        for named in re.findall(r"`((?:services|common|connector|scripts|configs|tests)/[\w/.-]+)[`(]", path.read_text()):
            if not (ROOT / named).exists():
                lost.append(f"{path.relative_to(ROOT)}: {named}")
    assert not lost, "\n".join(lost)


def test_every_document_can_be_found_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [path.name for path in documents()[1:] if f"docs/{path.name}" not in text] == []


@pytest.mark.parametrize(
    ("label", "text", "said"),
    [
        ("", "pegaflow status", "not labelled"),
        ("toml", "  scripts/test", "not labelled"),
        ("sh later", "true", "no such label"),
        ("sh hardware", "pegaflow status --colour", "no --colour"),
        ("sh hardware", "pegaflow-tier --pool-sise 1GiB", "no --pool-sise"),
        ("sh hardware", "pegaflow-mover", "no command"),
        ("sh minutes", "scripts/tests", "no scripts/tests"),
        ("sh minutes", "X=1 scripts/chaos --quick --slow   # --not", "no --slow"),
        ("sh minutes", "python -m pytest tests/e2e/test_nothing.py", "no tests/e2e"),
        (
            "sh hardware",
            'vllm serve M --kv-transfer-config \'{"kv_connector_extra_config": {"pegaflow.tear": 1}}\'',
            "pegaflow.tier",
        ),
    ],
)
def test_a_wrong_block_is_noticed(label: str, text: str, said: str) -> None:
    (found,) = complaints(Block("x", 1, label, text))
    assert said in found


def test_a_right_block_is_not() -> None:
    lines = (
        "A=1 pegaflow page find --tokens x | pegaflow-router --engine http://a:1 \\",
        "  --port 80",
        "scripts/chaos --list  # don't",
        "true > x",
    )
    text = "\n".join(lines)
    assert [words[0] for words in commands(text)] == ["pegaflow", "pegaflow-router", "scripts/chaos", "true"]
    assert complaints(Block("x", 1, "sh hardware", text)) == []
    assert complaints(Block("x", 1, "", "nothing to run: see pegaflow")) == []


def test_the_failure_table_knows_every_code() -> None:
    """Of attaching, of a connector that does not start, of the router, of misses, and of the doctor."""
    known = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "troubleshooting.md").read_text()))
    router = (ROOT / "docs" / "router.md").read_text()
    failures = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (.*?)(?: \(type .*?\))? \| (?:50[234]|in the stream).*$", router, re.MULTILINE))
    )
    source = "".join(path.read_text() for path in (ROOT / "connector").glob("*.py"))
    starts = re.findall(r'(?:StartRefused\(|yield \(?)\s*"(\w+)"', source)
    judges = "".join(path.read_text() for path in (ROOT / "services" / "cli" / "doctor").glob("*.py"))
    findings = re.findall(r'(?:error|warning)\(\s*"(\w+)"', judges) + re.findall(r'\(\s*"(\w+_differs)"', judges)
    attach = [
        "protocol_mismatch",
        "fingerprint_mismatch",
        "layout_mismatch",
        "lock_not_visible",
        "session_taken",
        "bad_member",
        "pool_too_small",
        "forbidden",
    ]
    for name, codes in {"router": failures, "start": starts, "doctor": findings, "attach": attach, "why": list(Cause)}.items():
        assert len(codes) >= 7, name
        assert {str(code) for code in codes} <= known, name
