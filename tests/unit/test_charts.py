"""Charts: well-formed SVG with the points where they belong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from charts import bars, grid
from charts.grid import Cell
from charts.lines import Axis, draw

SVG = "{http://www.w3.org/2000/svg}"


def circles(text: str) -> list[tuple[float, float]]:
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in ET.fromstring(text).iter(f"{SVG}circle")]


def test_larger_values_stand_further_right_and_higher() -> None:
    dots = circles(draw("a < b", Axis("x"), Axis("y"), {"one & only": [(1, 10), (2, 20), (4, 15)]}))
    (x1, y1), (x2, y2), (x3, y3) = dots
    assert x1 < x2 < x3 and y2 < y3 < y1
    assert x3 - x2 == pytest.approx(2 * (x2 - x1), abs=0.2)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    dots = circles(draw("t", Axis("n", log=True), Axis("s", log=True), {"a": [(8, 1), (64, 10), (512, 100)]}))
    (x1, y1), (x2, y2), (x3, y3) = dots
    assert x3 - x2 == pytest.approx(x2 - x1, abs=0.2) and y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


def test_what_cannot_be_drawn_is_left_out() -> None:
    text = draw("t", Axis("n"), Axis("s", log=True), {"a": [(1, 0.0), (2, 5.0), (3, float("nan"))], "b": []})
    assert len(circles(text)) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        draw("t", Axis("n"), Axis("s"), {"a": []})


def test_names_are_escaped_and_ticks_are_round() -> None:
    root = ET.fromstring(draw("a < b", Axis("n"), Axis("y"), {"p & q": [(0, 0), (10, 1)]}))
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert "a < b" in texts and "p & q" in texts and {"0", "2", "4", "0.2", "0.4"} <= set(texts)


def test_a_bar_is_as_long_as_its_value_and_no_group_is_without_one() -> None:
    groups = {"a & b": {"old": 10.0, "new": 40.0}, "c": {"old": 20.0}, "empty": {"new": float("nan")}}
    root = ET.fromstring(bars.draw("t < u", Axis("ms"), groups, at=30.0))
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {"t < u", "a & b", "c", "10.0", "40.0", "20.0"} <= set(texts) and "empty" not in texts
    drawn = [(box.attrib["fill"], float(box.attrib["width"])) for box in root.iter(f"{SVG}rect") if "x" in box.attrib][
        2:
    ]  # legend
    (old, ten), (new, forty), (old_again, twenty) = drawn
    assert old == old_again != new
    assert forty / ten == pytest.approx(4.0, abs=0.01) and twenty / ten == pytest.approx(2.0, abs=0.01)
    with pytest.raises(ValueError, match="nothing to draw"):
        bars.draw("t", Axis("ms"), {"a": {}})


def test_bars_of_a_logarithmic_axis_grow_by_equal_steps_for_equal_factors() -> None:
    root = ET.fromstring(bars.draw("t", Axis("s", log=True), {str(value): {"": value} for value in (0.0, 1.0, 10.0, 100.0)}))
    one, ten, hundred = (float(box.attrib["width"]) for box in root.iter(f"{SVG}rect") if "x" in box.attrib)
    assert hundred - ten == pytest.approx(ten - one, abs=0.2)


def test_cells_stand_in_their_row_and_column() -> None:
    rows: dict[str, list[Cell | None]] = {
        "first": [Cell("#111111", ["a"]), None],
        "second": [Cell("#222222", ["b"]), Cell("#333333", ["c", "d & e"])],
    }
    root = ET.fromstring(grid.draw("t < u", {"what": "#444444"}, ["left", "right"], rows))
    at = {
        box.attrib["fill"]: (float(box.attrib["x"]), float(box.attrib["y"]))
        for box in root.iter(f"{SVG}rect")
        if "x" in box.attrib
    }
    assert set(at) == {"#111111", "#222222", "#333333", "#444444"}
    assert at["#111111"][0] == at["#222222"][0] < at["#333333"][0]
    assert at["#111111"][1] < at["#222222"][1] == at["#333333"][1]
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert texts.count("d & e") == 1 and {"t < u", "what", "left", "right", "first", "second", "a", "b", "c"} <= set(texts)
    with pytest.raises(ValueError, match="nothing to draw"):
        grid.draw("t", {}, ["left"], {})
