"""The report page: valid, self-contained, and showing what it was given."""

import re
from html.parser import HTMLParser

import pytest

from surge.study import figures
from surge.study.arms import arm_style
from surge.study.report.page import (
    Badge,
    Code,
    Facts,
    Heading,
    Picture,
    Pictures,
    Section,
    Table,
    Text,
    Tiles,
    render,
    write_report,
)
from surge.study.report.style import STYLE
from surge.study.report.svg import inline_svg, themed

VOID = {"meta", "line", "br", "img", "input", "link", "hr", "path", "use", "rect", "circle"}


class Page(HTMLParser):
    """Collects ids, links and text, and insists that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.note(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.note(attributes)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def note(self, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.links.append(value)

    def handle_data(self, data):
        self.words.append(data)


def figure(colour="blue"):
    with figures.look():
        made, (axes,) = figures.new_figure()
        axes.plot([1, 2, 3], [3, 1, 2], "o--", color=figures.COLOURS[colour], label="a")
        axes.fill_between([1, 2, 3], 0, 1, color=figures.COLOURS["sky"], alpha=0.2)
        axes.set(xlabel="step", ylabel="loss <log>")
    return made


def page(*blocks, title="A <title>"):
    return render(title, [Section("What & why?", blocks)], lead="One.\n\nTwo.", foot="End.")


def everything():
    pictures = Pictures(
        [Picture(figure(), "Loss", "median"), Picture(figure(), "Again")],
        {"STE": arm_style("STE"), "STE+SURGE": arm_style("STE+SURGE")},
    )
    rows = [{"row": "a<b", "value": 0.123456, "n": 3}, {"row": "c", "value": None, "n": 12000}]
    return page(
        Heading("Sub"), Text("Hello\n\nworld"), Code("surge demo --out <x>"),
        Facts({"torch": "2.13", "ok": True, "none": None}), Tiles({"weights": "96.8 %"}),
        Table(rows, caption="three seeds"), pictures,
    )  # fmt: skip


def test_page_is_closed_and_its_ids_are_unique_and_linked():
    found = Page(everything())
    assert len(found.ids) == len(set(found.ids))
    inside = {link[1:] for link in found.links}
    assert all(link.startswith("#") for link in found.links)
    assert inside <= set(found.ids)


def test_page_loads_nothing():
    text = everything()
    assert not re.search(r"https?:", text)
    for word in ("<script", "<link", "<img", "@import", "<iframe", "xlink"):
        assert word not in text
    assert set(re.findall(r"url\(([^)]*)", text)) <= {f"#{name}" for name in Page(text).ids}


def test_page_knows_dark_and_narrow_screens():
    text = page()
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text and "max-width: 36rem" in text


def test_text_from_outside_is_escaped():
    text = page(Text("<b>bold</b> & more"), Facts({"<k>": "<v>"}), Tiles({"<w>": "<n>"}))
    for raw in ("<b>bold", "<k>", "<v>", "<w>", "<n>", "A <title>"):
        assert raw not in text
    assert "A &lt;title&gt;" in text and "What &amp; why?" in text


def test_table_shows_and_aligns_its_values():
    rows = [
        {"name": "x", "value": 0.123456, "n": 12000, "verdict": Badge("supported", "good")},
        {"name": "y", "value": None, "n": True, "verdict": Badge("no")},
    ]
    text = page(Table(rows, {"value": "number", "n": "count", "verdict": "answer"}, "about"))
    assert '<th class="number">number</th>' in text and ">0.1235</td>" in text
    assert ">12,000</td>" in text and ">–</td>" in text and ">yes</td>" in text
    assert '<span class="badge good">supported</span>' in text
    assert '<span class="badge plain">no</span>' in text
    assert "<td>x" not in text and "about" in text


def test_table_of_words_is_left_and_of_spreads_right():
    text = page(Table([{"a": "97.1 ± 0.3", "b": "hidden"}, {"a": "+0.28 [-1, +2]", "b": "-"}]))
    assert '<td class="number">97.1 ± 0.3</td><td>hidden</td>' in text


def test_table_without_rows_is_empty():
    assert "<tbody>" in page(Table([]))


def test_picture_takes_the_colours_and_the_font_of_the_page():
    drawn = inline_svg(figure(), prefix="p-", title='Loss "a"')
    assert "var(--blue)" in drawn and "var(--grid)" in drawn and "var(--sans)" in drawn
    assert "#0072b2" not in drawn and "DejaVu" not in drawn
    assert 'aria-label="Loss &quot;a&quot;"' in drawn
    assert "loss &lt;log&gt;" in drawn
    assert re.match(r"<svg[^>]*viewBox=", drawn) and not re.match(r"<svg[^>]*width=", drawn)


def test_picture_is_drawn_the_same_each_time():
    assert inline_svg(figure(), prefix="p-", title="t") == inline_svg(
        figure(), prefix="p-", title="t"
    )


def test_every_colour_of_the_figures_has_a_light_and_a_dark_value():
    for name, value in figures.COLOURS.items():
        assert themed(f"fill: {value}") == f"fill: var(--{name})"
        assert len(re.findall(rf"--{name}: #[0-9a-f]{{6}};", STYLE)) == 2


def test_legend_shows_each_arm_as_it_is_drawn():
    text = everything()
    assert 'stroke-dasharray="6 3"' in text and 'stroke-dasharray="none"' in text
    assert "STE+SURGE" in text


def test_write_report_replaces_the_old_page_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "page.html"
    for title in ("first", "second"):
        assert write_report(path, title, [Section("S", [Text("t")])]) == path
    text = path.read_text(encoding="utf-8")
    assert "<h1>second</h1>" in text and "<h1>first</h1>" not in text
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_write_report_that_fails_leaves_the_old_page(tmp_path):
    path = write_report(tmp_path / "page.html", "old", [])
    with pytest.raises(AttributeError):
        write_report(path, "new", [Section("S", [Pictures([Picture(None, "none")])])])
    assert "<h1>old</h1>" in path.read_text()
    assert len(list(tmp_path.iterdir())) == 1
