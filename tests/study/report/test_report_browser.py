"""The report page in a real Chromium: no errors, controls that work, room on a phone."""

import json
import math
from pathlib import Path

import pytest

from surge.study.report import run_page
from surge.study.report.page import write_report
from surge.study.stored_runs import open_run
from tests.study.browser import needs_chromium, visit
from tests.study.run_folders import write_run

pytestmark = needs_chromium
ROOT = Path(__file__).parents[3]


def write_page(folder, paths):
    runs = [open_run(path) for path in paths]
    return write_report(
        folder / "page.html", run_page.TITLE, run_page.make_sections(runs), foot=run_page.FOOT
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    paths = [
        write_run(root, row, seed=seed, last=90.0 + 3 * seed + len(row) % 2)
        for row in ("digits-cnn-recu", "digits-cnn-recu-surge")
        for seed in (0, 1)
    ]
    paths.append(write_run(root, "digits-cnn-bnn", bad=3))
    return write_page(root, paths)


def test_controls_of_the_chart_work(page):
    found = visit(
        page,
        """
        const chart = document.querySelector(".chart");
        const say = () => [chart.dataset.shown, chart.dataset.axis, chart.dataset.across,
                           chart.querySelectorAll(".curve").length];
        const press = (name) => [...chart.querySelectorAll("button")]
            .find((b) => b.textContent === name).click();
        const seen = [say()];
        press("training loss"); seen.push(say());
        press("time"); seen.push(say());
        press("digits-cnn-recu"); seen.push(say());
        const off = [...chart.querySelectorAll(".legend button")]
            .map((b) => b.getAttribute("aria-pressed"));
        press("digits-cnn-recu"); press("digits-cnn-recu-surge"); press("digits-cnn-bnn");
        press("digits-cnn-recu");
        seen.push(say(), chart.querySelector("svg").textContent, off);
        return seen;
        """,
    )
    assert found == [
        ["5", "test_top1", "epochs", 5],
        ["5", "train_loss", "epochs", 5],
        ["5", "train_loss", "time", 5],
        ["3", "train_loss", "time", 3],
        ["0", "train_loss", "time", 0],
        "nothing to show",
        ["true", "false", "true"],
    ]


def test_legend_names_the_runs_that_have_what_is_shown(tmp_path):
    paths = [write_run(tmp_path, row) for row in ("digits-cnn-recu", "digits-cnn-recu-surge")]
    metrics = paths[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("flips", "nothing"))
    found = visit(
        write_page(tmp_path, paths),
        """
        const chart = document.querySelector(".chart");
        const seen = () => [...chart.querySelectorAll(".legend button")]
            .filter((b) => b.offsetParent !== null).map((b) => b.textContent);
        const before = seen();
        [...chart.querySelectorAll("button")]
            .find((b) => b.textContent === "flipped bits, %").click();
        return [before, seen()];
        """,
    )
    assert found == [["digits-cnn-recu", "digits-cnn-recu-surge"], ["digits-cnn-recu"]]


def test_epochs_below_the_curves_are_whole(tmp_path):
    found = visit(
        write_page(tmp_path, [write_run(tmp_path, epochs=2)]),
        """
        return [...document.querySelectorAll(".chart text[text-anchor=middle]")]
            .map((t) => t.textContent);
        """,
    )
    assert found == ["1", "2"]


def test_lines_pass_over_epochs_without_a_test_but_not_over_nan(tmp_path):
    some, broken = (write_run(tmp_path, f"digits-cnn-{name}") for name in ("recu", "bnn"))

    def change(path, spoil):
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            spoil(row)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (path / "metrics.jsonl").write_text(text)

    change(some, lambda row: (row["epoch"] + 1) % 3 and row.pop("test_top1"))
    change(broken, lambda row: row.update(test_top1=math.nan) if row["epoch"] == 9 else None)
    found = visit(
        write_page(tmp_path, [some, broken]),
        """
        const count = (path, letter) => path.getAttribute("d").split(letter).length - 1;
        const curves = [...document.querySelectorAll(".chart .curve")];
        return curves.map((path) => [count(path, "M"), count(path, "M") + count(path, "L")]);
        """,
    )
    assert sorted(found) == [[1, 6], [2, 19]]


def test_pointer_shows_the_values_of_an_epoch(page):
    found = visit(
        page,
        """
        const chart = document.querySelector(".chart"), svg = chart.querySelector("svg");
        const box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent("pointermove",
            { clientX: box.right - 12, clientY: box.top + 50, bubbles: true }));
        const tip = chart.querySelector(".tip");
        const shown = [tip.hidden, [...tip.children].map((e) => e.textContent)];
        svg.dispatchEvent(new PointerEvent("pointerleave"));
        return [...shown, tip.hidden];
        """,
    )
    assert found[0] is False and found[2] is True
    # The run that is not finite from its fourth epoch on has no value at the twentieth.
    assert found[1][0] == "epoch 20"
    values = [float(line.split(" ")[0]) for line in found[1][1:]]
    assert values == sorted(values, reverse=True) and max(values) in (93.0, 94.0)
    assert len(found[1]) == 5
    assert {line.split(" ", 1)[1] for line in found[1][1:]} == {
        f"{arm}, seed {seed}"
        for arm in ("digits-cnn-recu", "digits-cnn-recu-surge")
        for seed in (0, 1)
    }


def test_headings_sort_the_runs_both_ways(page):
    found = visit(
        page,
        """
        const table = document.querySelector("#runs table");
        const column = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent === "best, %");
        const read = () => [...table.tBodies[0].rows].map((r) => r.cells[column].textContent);
        const head = () => table.tHead.rows[0].cells[column].querySelector("button").click();
        head(); const up = read(); head(); return [up, read()];
        """,
    )
    up, down = ([float(value) for value in values] for values in found)
    assert up == sorted(up) and down == sorted(down, reverse=True) and up[0] < up[-1]


@pytest.mark.parametrize("width", [390, 1200])
def test_page_does_not_scroll_sideways(page, width):
    found = visit(
        page,
        """
        await later();
        const wide = [...document.querySelectorAll("body *")].filter((e) =>
            e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide, pre, svg"));
        return [document.documentElement.scrollWidth <= innerWidth, wide.map((e) => e.className),
                innerWidth];
        """,
        width=width,
    )
    assert found == [True, [], width]


def test_dark_screens_get_dark_paper_and_light_ones_light(page):
    script = "return getComputedStyle(document.querySelector('section')).backgroundColor;"
    assert visit(page, script) == "rgb(255, 255, 255)"
    assert visit(page, script, dark=True) == "rgb(27, 29, 32)"


def test_page_asks_for_nothing_from_elsewhere(page):
    script = "await later(); return performance.getEntriesByType('resource').map((e) => e.name);"
    assert [name for name in visit(page, script) if not name.startswith("data:")] == []


def test_pages_of_no_run_and_of_fifty_load(tmp_path):
    empty = write_page(tmp_path, [])
    assert "No runs" in visit(empty, "return document.querySelector('h2').textContent;")
    rows = ("digits-cnn-recu", "digits-cnn-recu-surge")
    many = [write_run(tmp_path, row, seed=seed) for row in rows for seed in range(25)]
    full = write_page(tmp_path, many)
    found = visit(full, "return document.querySelectorAll('.chart .curve').length;")
    assert found == 50


@pytest.fixture(scope="module")
def stored_page(tmp_path_factory):
    """The page of all stored runs."""
    folder = tmp_path_factory.mktemp("stored")
    return write_page(folder, sorted((ROOT / "results" / "runs").iterdir()))


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1200, False)])
def test_page_of_all_stored_runs_loads_and_has_room(width, dark, stored_page):
    assert stored_page.stat().st_size < 5e6
    found = visit(
        stored_page,
        """
        const cells = (id) => [...document.querySelector(id + " table").rows[1].cells];
        const seen = (cell) => cell.getBoundingClientRect().right <= innerWidth;
        return [cells("#compared").filter(seen).length, cells("#runs").filter(seen).length,
                document.querySelectorAll("figure svg").length,
                document.documentElement.scrollWidth <= innerWidth];
        """,
        width=width,
        dark=dark,
    )
    compared, runs, pictures, narrow = found
    # On a phone the state of a run, and how long a recipe was, without scrolling; else everything.
    assert compared >= (2 if width < 500 else 9)
    assert runs >= (2 if width < 500 else 7)
    assert pictures > 30 and narrow


def test_a_page_with_a_fault_is_caught(tmp_path):
    page = write_page(tmp_path, [])
    page.write_text(page.read_text().replace("</main>", "<script>missing();</script></main>"))
    with pytest.raises(AssertionError, match="missing is not defined"):
        visit(page, "return 1;")
