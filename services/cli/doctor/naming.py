"""Do engines name pages alike? Those that do not share nothing, and nobody else says so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from pegaflow.services.cli.doctor.finding import Finding, error, warning
from pegaflow.services.cli.doctor.patient import Engine

_SHOWN = 24
_SPECIAL = {
    "none_hash": (
        "hash_seed_differs",
        "start all engines with the same PYTHONHASHSEED, or, with sha256_cbor, without: vLLM then has a fixed seed",
    ),
    "hash_algorithm": ("hash_algorithm_differs", "give all engines the same --prefix-caching-hash-algo, best sha256_cbor"),
    "block_size": ("block_size_differs", "give all engines the same --block-size"),
    "contract": ("connector_differs", "install the same pegaflow beside all engines"),
}


def judge(engines: Sequence[Engine]) -> list[Finding]:
    """Engines of one model are compared with what most of it do. Different models share nothing, and shall not."""
    found: list[Finding] = []
    models: dict[str, list[Engine]] = defaultdict(list)
    for engine in engines:
        models[engine.factors.get("model", "")].append(engine)
    for mine in models.values():
        alike = Counter(map(_naming, mine))
        usual = max(mine, key=lambda one: alike[_naming(one)])
        for engine in mine:
            if _naming(engine) != _naming(usual):
                found += _compared(usual, engine, alike[_naming(usual)] if alike[_naming(usual)] > alike[_naming(engine)] else 0)
    for engine in engines:
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


def _naming(engine: Engine) -> Hashable:
    return engine.fingerprint, frozenset(engine.factors.items())


def _compared(one: Engine, two: Engine, many: int) -> list[Finding]:
    """`many` name pages like `one`, and fewer like `two`, which then is the odd one; 0: as many."""
    where = two.where if many else f"{one.where}, {two.where}"
    names = differing(one.factors, two.factors)
    found = []
    for name in names:
        code, todo = _SPECIAL.get(name, ("fingerprint_differs", f"start all engines with the same {name}, or expect no hits"))
        ours, theirs = short(one.factors.get(name)), short(two.factors.get(name))
        values = f"{name}: {theirs}, but {ours} on {many} others" if many else f"{name}: {ours} and {theirs}"
        found.append(error(code, where, values, todo))
    if not names and one.fingerprint != two.fingerprint:
        todo = "install the same pegaflow beside all engines"
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
