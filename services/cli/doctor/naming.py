"""Do engines name pages alike? Those that do not share nothing, and nobody else says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pegaflow.services.cli.doctor.finding import Finding, error, warning
from pegaflow.services.cli.doctor.patient import Engine

_SHOWN = 24
_SPECIAL = {
    "none_hash": (
        "hash_seed_differs",
        "start both engines with the same PYTHONHASHSEED: vLLM draws a random one where it is not set",
    ),
    "hash_algorithm": ("hash_algorithm_differs", "give both engines the same --prefix-caching-hash-algo, best sha256_cbor"),
    "block_size": ("block_size_differs", "give both engines the same --block-size"),
    "contract": ("connector_differs", "install the same pegaflow beside both engines"),
}


def judge(engines: Sequence[Engine]) -> list[Finding]:
    """Engines of one model are compared with the first of it. Different models share nothing, and shall not."""
    found: list[Finding] = []
    first: dict[str, Engine] = {}
    for engine in engines:
        model = engine.factors.get("model", "")
        other = first.setdefault(model, engine)
        if other is not engine:
            found += _compared(other, engine)
        if engine.factors.get("hash_algorithm", "").startswith("xxhash"):
            found.append(
                warning(
                    "weak_hash",
                    engine.where,
                    f"hash_algorithm {engine.factors['hash_algorithm']}",
                    "where prompts are not trusted use --prefix-caching-hash-algo sha256_cbor: xxhash can be made to collide",
                )
            )
    return found


def _compared(one: Engine, two: Engine) -> list[Finding]:
    where = f"{one.where}, {two.where}"
    names = differing(one.factors, two.factors)
    found = []
    for name in names:
        code, todo = _SPECIAL.get(name, ("fingerprint_differs", f"start both engines with the same {name}, or expect no hits"))
        values = f"{name}: {short(one.factors.get(name))} and {short(two.factors.get(name))}"
        found.append(error(code, where, values, todo))
    if not names and one.fingerprint != two.fingerprint:
        todo = "install the same pegaflow beside both engines"
        found.append(error("fingerprint_differs", where, f"{one.fingerprint} and {two.fingerprint}, all factors equal", todo))
    return found


def differing(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    """Names of factors that differ or that only one has, sorted. Layouts follow from the others, so they count only alone."""
    names = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    causes = [name for name in names if not name.startswith("layout_")]
    return causes or names


def short(value: str | None) -> str:
    """A factor for people: the beginning of a long one, `-` for none."""
    if not value:
        return "-"
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
