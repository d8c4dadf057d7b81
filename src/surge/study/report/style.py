"""The look of a report page: one style sheet, light and dark, wide and narrow."""

from collections.abc import Mapping

from surge.study.figures import COLOURS

_DARK: Mapping[str, str] = {
    "ink": "#e8e6e3",
    "grey": "#9a9a9a",
    "pale": "#4a4d52",
    "blue": "#4ba3e3",
    "sky": "#93d3f7",
    "vermilion": "#ff8d57",
    "orange": "#f2bb4d",
    "green": "#2fb992",
    "mint": "#86e3c8",
    "purple": "#d891c3",
}
"""The colours of figures on a dark page, by the names of ``figures.COLOURS``."""


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colours[name]};" for name in COLOURS)


_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.6 var(--sans); }
main, header > div, footer { max-width: 78rem; margin: 0 auto; padding: 0 1.25rem; }
header { background: var(--paper); border-bottom: 1px solid var(--line); }
header > div { padding-top: 2.6rem; padding-bottom: 1.6rem; }
h1 { font-size: clamp(1.7rem, 4.5vw, 2.5rem); line-height: 1.15; letter-spacing: -0.02em;
  margin: 0 0 0.6rem; }
h2 { font-size: 1.45rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 0.6rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
header p { color: var(--quiet); font-size: 1.08rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.4rem; margin-top: 1.1rem; }
nav a { color: var(--ink); text-decoration: none; font-size: 0.88rem; padding: 0.22rem 0.75rem;
  border: 1px solid var(--line); border-radius: 99px; background: var(--back); }
nav a:hover, nav a:focus-visible { border-color: var(--blue); color: var(--blue); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 14px;
  padding: 1.6rem clamp(1rem, 3vw, 1.9rem); margin: 1.5rem 0; scroll-margin-top: 1rem; }
footer { color: var(--quiet); font-size: 0.88rem; padding-top: 0.4rem; padding-bottom: 2.5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(44%, 11rem), 1fr));
  gap: 0.8rem; margin: 1.1rem 0 0.2rem; }
.tile { border: 1px solid var(--line); border-radius: 10px; padding: 0.8rem 1rem;
  background: var(--back); }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; letter-spacing: -0.01em; }
.tile span { color: var(--quiet); font-size: 0.88rem; line-height: 1.35; display: block; }
.wide { overflow-x: auto; margin: 1rem 0; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
.caption { color: var(--quiet); font-size: 0.86rem; margin-top: -0.4rem; max-width: 54rem; }
th { text-align: left; font-weight: 600; color: var(--quiet); white-space: nowrap;
  border-bottom: 2px solid var(--line); padding: 0.4rem 0.7rem; }
td { border-bottom: 1px solid var(--line); padding: 0.42rem 0.7rem; vertical-align: top; }
tbody tr:last-child td { border-bottom: none; }
tbody tr:hover td { background: var(--back); }
td:not(:first-child):not(:last-child), .number { white-space: nowrap; }
td:last-child:not(.number) { min-width: 7.5rem; }
.number { text-align: right; }
td:first-child, th:first-child { padding-left: 0; }
.badge { display: inline-block; white-space: nowrap; border-radius: 99px; padding: 0 0.6rem;
  font-size: 0.82rem; border: 1px solid currentColor; }
.good { color: var(--green); } .bad { color: var(--vermilion); } .plain { color: var(--quiet); }
.pictures { display: grid; gap: 1.2rem 1.6rem; margin: 0.8rem 0 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 40rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { font-size: 0.92rem; font-weight: 600; margin-bottom: 0.3rem; }
figcaption span { display: block; font-weight: 400; font-size: 0.86rem; color: var(--quiet); }
.legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1.3rem; font-size: 0.9rem; margin: 0.8rem 0; }
.legend svg { width: 2.1rem; height: 0.7rem; margin-right: 0.45rem; }
pre { background: var(--back); border: 1px solid var(--line); border-radius: 10px; margin: 0.8rem 0;
  padding: 0.8rem 1rem; overflow-x: auto; font: 0.86rem/1.5 var(--mono); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1.4rem; margin: 0.8rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
.chart { margin: 0.8rem 0 1rem; }
.chart .frame { position: relative; }
.chart svg { display: block; width: 100%; touch-action: pan-y; }
.chart svg text { font: 12px var(--sans); fill: var(--quiet); }
.chart .grid { stroke: var(--grid); } .chart .cross { stroke: var(--grey); }
.chart .curve { stroke-width: 1.7; stroke-linejoin: round; opacity: 0.9; }
.controls { display: flex; flex-wrap: wrap; gap: 0.5rem 1.2rem; margin-bottom: 0.6rem; }
.choice { display: flex; flex-wrap: wrap; gap: 0.3rem; }
button { font: inherit; font-size: 0.86rem; color: var(--ink); background: var(--back);
  border: 1px solid var(--line); border-radius: 99px; padding: 0.2rem 0.75rem; cursor: pointer; }
button[aria-pressed="true"] { border-color: var(--blue); color: var(--blue); }
button:focus-visible { outline: 2px solid var(--blue); outline-offset: 1px; }
.chart .legend button { border-radius: 6px; border-left: 6px solid var(--mark); color: var(--ink);
  border-color: var(--line) var(--line) var(--line) var(--mark); overflow-wrap: anywhere; }
.chart .legend button[aria-pressed="false"] { opacity: 0.4; text-decoration: line-through; }
.chart .legend { max-height: 13rem; overflow-y: auto; gap: 0.35rem; }
.tip { position: absolute; top: 0.4rem; pointer-events: none; background: var(--paper); z-index: 2;
  border: 1px solid var(--line); border-radius: 8px; padding: 0.4rem 0.7rem; font-size: 0.82rem;
  line-height: 1.45; max-width: 75%; box-shadow: 0 2px 10px #0002; }
.tip div { border-left: 4px solid var(--mark); padding-left: 0.4rem; margin: 0.1rem 0;
  overflow-wrap: anywhere; } .tip span { font-weight: 600; font-variant-numeric: tabular-nums; }
th button { border: none; background: none; padding: 0; border-radius: 3px; font-weight: 600;
  font-size: 0.9rem; color: var(--quiet); }
th[aria-sort="ascending"] button::after { content: " ▲"; }
th[aria-sort="descending"] button::after { content: " ▼"; }
.bars td { vertical-align: middle; padding-top: 0.2rem; padding-bottom: 0.2rem; }
.bar { position: relative; min-width: 8rem; height: 1.35rem; background: var(--back);
  border-radius: 4px; overflow: hidden; }
.bar i { position: absolute; inset: 0 auto 0 0; opacity: 0.45; }
.bar span { position: relative; padding-left: 0.4rem; font-size: 0.82rem; line-height: 1.35rem; }
@media (max-width: 36rem) {
  main, header > div, footer { padding-left: 0.8rem; padding-right: 0.8rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 0.5rem; }
  th, td { padding-left: 0.45rem; padding-right: 0.45rem; }
  td:first-child { overflow-wrap: anywhere; min-width: 7.5rem; }
}
@media print {
  body { background: none; } section { border: none; padding: 0; } nav { display: none; }
}
"""

STYLE = f"""
:root {{ color-scheme: light dark; {_variables(COLOURS)}
  --back: #f6f6f4; --paper: #ffffff; --line: #e2e1dd; --grid: #ececec; --quiet: #5f6368;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Verdana, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_variables(_DARK)}
    --back: #131416; --paper: #1b1d20; --line: #33363b; --grid: #2b2e33; --quiet: #a3a7ad; }}
}}
{_RULES}"""
"""Everything between ``<style>`` and ``</style>``; figures use its variables as their colours."""
