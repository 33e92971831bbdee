"""Do processes run what fits together?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pegaflow.services.cli.doctor.finding import Finding, error, warning
from pegaflow.services.cli.doctor.patient import Engine, Patient

_ADVICE = {
    "protocol": "services of different protocols do not understand each other: upgrade the older ones",
    "pegaflow": "finish the rolling upgrade: releases are tested together",
    "vllm": "run one vLLM for all engines that share pages: a page's bytes may differ between releases",
    "nixl": "run one NIXL on all nodes: their agents exchange opaque metadata",
    "libzmq": "run one libzmq",
}
"""Names that matter, and why. Others, such as the kernel's, may differ."""
_ERRORS = frozenset({"protocol"})


def judge(patients: Sequence[Patient], engines: Sequence[Engine]) -> list[Finding]:
    told = [(patient.name, patient.part("versions")) for patient in patients]
    told += [(engine.where, engine.versions) for engine in engines]
    found = []
    for name, todo in _ADVICE.items():
        users = _users(name, told)
        if len(users) > 1:
            what = f"{name}: " + ", ".join(f"{version} ({', '.join(names)})" for version, names in sorted(users.items()))
            make = error if name in _ERRORS else warning
            found.append(make(f"{name}_versions_differ", "cluster", what, todo))
    return found


def _users(name: str, told: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = defaultdict(list)
    for who, versions in told:
        if name in versions:
            users[str(versions[name])].append(who)
    return users
