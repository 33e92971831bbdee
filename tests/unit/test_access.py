"""Who is there and does not let us in, out of what the endpoint shows; and that this is never concluded of anybody else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pegaflow.services.cli.access import ADVICE, BARRED, CUTS, MIN_S, PATIENCE, Access, Seen, judged, said

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
LONG = 60.0


@pytest.mark.parametrize(
    ("seen", "has_key", "held_s", "access"),
    [
        (Seen("", "CURVE"), True, LONG, Access.KEY_REFUSED),
        (Seen("", "CURVE", refused=True), True, 0.0, Access.KEY_REFUSED),
        (Seen("", "CURVE", cuts=CUTS), True, 0.0, Access.WRONG_SERVER_KEY),
        (Seen("", "CURVE", cuts=CUTS), True, LONG, Access.KEY_REFUSED),  # a wrong one is cut each time
        (Seen("", "CURVE"), False, 0.0, Access.KEY_NEEDED),
        (Seen("", "NULL"), True, 0.0, Access.NO_KEYS),
        (Seen("", "NULL", cuts=9), True, 0.0, Access.NO_KEYS),  # whoever hangs up first is chance
        (Seen("no_permission"), False, 0.0, Access.NO_PERMISSION),
        (Seen("", "CURVE"), True, 0.0, None),  # too early to say
        (Seen("", "CURVE"), True, MIN_S, None),
        (Seen("", "CURVE", greeted_s=1.0), True, PATIENCE * 1.0, None),  # far away, or busy
        (Seen("", "CURVE", cuts=CUTS - 1), True, 0.0, None),  # it is being stopped, or has refused us quickly
        (Seen("", "CURVE", let_in=True), True, LONG, None),  # it hangs
        (Seen("", "NULL"), False, LONG, None),
        (Seen("", ""), True, LONG, None),  # nothing but a signature
        (Seen(None, "CURVE"), True, LONG, None),
        (Seen("silent"), True, LONG, None),  # stopped
        (Seen("refused"), True, LONG, None),  # not running
        (Seen("not_zmq", cuts=5), True, LONG, None),
    ],
)
def test_what_is_concluded(seen: Seen, has_key: bool, held_s: float, access: Access | None) -> None:
    assert judged(seen, has_key, held_s) is access


@pytest.mark.parametrize("access", Access)
def test_it_is_said_with_what_to_do_and_documented(access: Access) -> None:
    text = said(access, "5f2c" * 16)
    assert ADVICE[access] in text and "\n" not in text
    assert access is not Access.KEY_REFUSED or ("5f2c5f2c…" in text and "5f2c" * 16 not in text)
    table = PAGE.partition("**Not let in.**")[2].partition("**JSON.**")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {str(code) for code in BARRED}
