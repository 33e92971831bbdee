"""How engines name the pages of a prompt, as their tiers tell it, and on which node an engine is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import FINGERPRINT_BYTES, HashAlgorithm, Key
from pegaflow.common.wire.messages.attach import SessionList

MAX_IDS: Final = 16_384
"""Of a prompt: hashing them takes about 5 ms, for which nothing else runs. Their pages stand for the rest."""


def names(scheme: KeyScheme, ids: Sequence[int]) -> list[Key]:
    """Keys of the full blocks of a prompt's beginning, in order."""
    return scheme.keys(ids[:MAX_IDS])


def schemes(listed: SessionList) -> frozenset[KeyScheme]:
    """Those of a tier's engines that can be computed here: pickled hashes cannot."""
    found = set()
    columns = zip(listed.block_sizes, listed.hash_block_sizes, listed.algorithms, listed.none_hashes, strict=True)
    for number, (block_size, hash_block_size, algorithm, none_hash) in enumerate(columns):
        if algorithm not in set(HashAlgorithm) or not hash_block_size or block_size % hash_block_size:
            continue
        fingerprint = listed.fingerprints[FINGERPRINT_BYTES * number : FINGERPRINT_BYTES * (number + 1)]
        found.add(KeyScheme(fingerprint, block_size, hash_block_size, HashAlgorithm(algorithm), bytes.fromhex(none_hash)))
    return frozenset(found)


def place(engines: Iterable[str], nodes: Mapping[str, str], told: Mapping[str, str]) -> dict[str, str]:
    """Engine's base URL → node. What the operator `told` counts; else the one node whose endpoint has the URL's host.

    `nodes`: node → its request endpoint.
    """
    hosts: dict[str, list[str]] = {}
    for node, endpoint in nodes.items():
        hosts.setdefault(urlsplit(endpoint).hostname or "", []).append(node)
    found = {}
    for url in engines:
        there = hosts.get(urlsplit(url).hostname or "", [])
        if url in told:
            found[url] = told[url]
        elif len(there) == 1:
            found[url] = there[0]
    return found
