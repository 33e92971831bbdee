"""The fingerprints that the tiers know: whose they are, out of which factors, and how they name pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import HashAlgorithm
from pegaflow.common.wire.messages import inspection
from pegaflow.services.cli.cluster import Cluster

SHORT = 8
"""Hexadecimal digits of a fingerprint that are shown to people."""
_VALUE = 32


@dataclass(slots=True)
class Namespace:
    """One fingerprint over all tiers that answered. `engines`: attached now, as `engine on node`."""

    fingerprint: bytes
    factors: Mapping[str, str] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)
    pages: int = 0
    used_bytes: int = 0
    disk: int = 0

    @property
    def scheme(self) -> KeyScheme | None:
        """None: the factors are not known, or the keys cannot be made outside vLLM (pickled hashes)."""
        return scheme_of(self.fingerprint, self.factors)

    @property
    def label(self) -> str:
        """For people."""
        who = ", ".join(self.engines) or "no engine now"
        return f"{self.fingerprint.hex()[:SHORT]} ({who})"


def scheme_of(fingerprint: bytes, factors: Mapping[str, str]) -> KeyScheme | None:
    """How pages are named under these factors; None if that cannot be told or computed."""
    try:
        block, fine = int(factors["block_size"]), int(factors["hash_block_size"])
        algorithm, none_hash = HashAlgorithm(factors["hash_algorithm"]), bytes.fromhex(factors["none_hash"])
    except (KeyError, ValueError):
        return None
    return KeyScheme(fingerprint, block, fine, algorithm, none_hash) if fine > 0 and block > 0 and block % fine == 0 else None


async def namespaces(cluster: Cluster) -> dict[bytes, Namespace]:
    """All that a tier knows, those with an engine first."""
    answers = await cluster.ask_each(cluster.tiers, inspection.Namespaces(), inspection.NamespaceList)
    return merged((peer.node, answer) for peer, answer in answers)


def merged(answers: Iterable[tuple[str, inspection.NamespaceList]]) -> dict[bytes, Namespace]:
    """One entry per fingerprint out of the answers of several nodes; what is no fingerprint is left out."""
    found: dict[bytes, Namespace] = {}
    for node, answer in answers:
        columns = zip(
            answer.fingerprints, answer.engines, answer.factors, answer.pages, answer.used_bytes, answer.disk, strict=True
        )
        for text, engines, factors, pages, used, disk in columns:
            try:
                name = bytes.fromhex(text)
            except ValueError:
                continue
            one = found.setdefault(name, Namespace(name))
            one.factors = one.factors or dict(line.split("=", 1) for line in factors.splitlines() if "=" in line)
            one.engines += [f"{engine} on {node}" for engine in engines.split(", ") if engine]
            one.pages, one.used_bytes, one.disk = one.pages + pages, one.used_bytes + used, one.disk + disk
    return dict(sorted(found.items(), key=lambda item: (not item[1].engines, -item[1].pages)))


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The factors that differ, for people: `none_hash (ours 0f…, theirs 1e…)`; empty where one side is not known."""
    if not ours or not theirs:
        return ""
    names = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} (here {_short(ours.get(name))}, there {_short(theirs.get(name))})" for name in names)


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= _VALUE else value[: _VALUE - 1] + "…"
