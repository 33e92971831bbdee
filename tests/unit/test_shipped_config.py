"""configs/pegaflow.toml names every option of every service, as it is today, and each line can be switched on."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common.config import resolve
from pegaflow.services.cli.config import CliConfig
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.router.config import RouterConfig
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.watch.config import WatchConfig

SHIPPED = Path(__file__).parents[2] / "configs" / "pegaflow.toml"
ALONE = {"router": {"prefill": ["http://a:1"], "decode": ["http://b:1"]}, "watch": {"program": ["a=http://a:1/health"]}}
"""What a service cannot start without."""
NO_FIXED_DEFAULT = {"runtime_dir", "pd_max_model_len", *ALONE["router"], *ALONE["watch"]}

SERVICES = [
    ("tier", TierConfig),
    ("metaserver", MetaserverConfig),
    ("router", RouterConfig),
    ("watch", WatchConfig),
    ("cli", CliConfig),
]


def switched_on() -> dict[str, dict[str, Any]]:
    """The file with the `#` before each `name =` removed."""
    return tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", SHIPPED.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(("section", "config"), SERVICES)
def test_every_option_is_shown(section: str, config: type[Any]) -> None:
    assert set(switched_on()[section]) == {field.name for field in dataclasses.fields(config)}


@pytest.mark.parametrize(("section", "config"), SERVICES)
def test_shown_values_are_the_defaults(section: str, config: type[Any], tmp_path: Path) -> None:
    shown = switched_on()[section] | ALONE.get(section, {})
    text = "\n".join(f"{name} = {_toml(value)}" for name, value in shown.items())
    path = tmp_path / "pegaflow.toml"
    path.write_text(f"[{section}]\n{text}\n")
    value = resolve(config, section=section, argv=["--config", str(path)]).value
    for field in dataclasses.fields(config):
        if field.name not in NO_FIXED_DEFAULT:
            assert getattr(value, field.name) == field.default, field.name


def test_nothing_is_set_as_shipped() -> None:
    assert all(table == {} for table in tomllib.loads(SHIPPED.read_text()).values())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(list(value)) if isinstance(value, list) else f'"{value}"' if isinstance(value, str) else str(value)
