// The one script of a report page: it draws curves and sorts tables, and loads nothing.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes, parent, text) => {
    const found = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text !== undefined) found.textContent = text;
    if (parent) parent.appendChild(found);
    return found;
  };
  const button = (parent, text, pressed, act) => {
    const found = document.createElement("button");
    found.type = "button";
    found.textContent = text;
    found.setAttribute("aria-pressed", pressed);
    found.addEventListener("click", () => act(found));
    parent.appendChild(found);
    return found;
  };
  const row = (parent, name, label) => {
    const found = document.createElement("div");
    found.className = name;
    found.setAttribute("role", "group");
    found.setAttribute("aria-label", label);
    parent.appendChild(found);
    return found;
  };
  const short = (x) => Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3)
    ? x.toExponential(2) : String(Number(x.toPrecision(4)));
  const ticks = (low, high, count, least = 0) => {
    const raw = Math.max((high - low) / count, least), power = 10 ** Math.floor(Math.log10(raw));
    const fits = (s) => s >= raw && (!least || Number.isInteger(s));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find(fits) || raw;
    const found = [];
    for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
    return found;
  };

  function build(root) {
    const data = JSON.parse(root.querySelector("script").textContent);
    root.removeAttribute("role");
    if (!data.curves.length) return;
    const state = { axis: data.axes[0], time: false, hidden: new Set() };
    const groups = [...new Map(data.curves.map((c) => [c.group, c])).values()];
    const top = row(root, "controls", "What is shown");
    const press = (parent, chosen) =>
      [...parent.children].forEach((b) => b.setAttribute("aria-pressed", b === chosen));
    const metrics = row(top, "choice", "Measure");
    data.axes.forEach((axis) => button(metrics, axis.label, axis === state.axis, (b) => {
      state.axis = axis; press(metrics, b); draw();
    }));
    const across = row(top, "choice", "Against");
    [["epochs", false], ["time", true]].forEach(([label, time]) =>
      button(across, label, time === state.time, (b) => { state.time = time; press(across, b); draw(); }));
    const frame = document.createElement("div");
    frame.className = "frame";
    root.appendChild(frame);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const legend = row(root, "legend", "Runs");
    const marks = groups.map((g) => {
      const b = button(legend, g.group, true, () => {
        const hide = !state.hidden.has(g.group);
        state.hidden[hide ? "add" : "delete"](g.group);
        b.setAttribute("aria-pressed", !hide);
        draw();
      });
      b.style.setProperty("--mark", `var(--${g.colour})`);
      return b;
    });

    function draw() {
      const width = Math.max(280, frame.clientWidth || 640), height = width < 520 ? 260 : 360;
      const left = 52, right = width - 10, bottom = height - 34, upper = 10;
      frame.replaceChildren();
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, frame);
      frame.appendChild(tip);
      tip.hidden = true;
      const key = state.axis.key;
      const known = new Set(data.curves.filter((c) => c.values[key]).map((c) => c.group));
      groups.forEach((g, i) => { marks[i].style.display = known.has(g.group) ? "" : "none"; });
      const shown = data.curves.filter((c) => !state.hidden.has(c.group) && c.values[key]);
      const longest = Math.max(0, ...shown.map((c) => c.seconds[c.seconds.length - 1] || 0));
      const unit = longest > 7200 ? ["hours", 3600] : longest > 300 ? ["minutes", 60] : ["seconds", 1];
      const xs = (c) => state.time ? c.seconds.map((s) => s / unit[1]) : c.epochs;
      const log = state.axis.log;
      // null is a number that is not finite, false one that was not measured: lines pass over that.
      const usable = (v) => v !== null && v !== false && (!log || v > 0);
      const points = shown.map((c) => {
        const x = xs(c);
        return c.values[key].map((v, i) => usable(v) ? [x[i], log ? Math.log10(v) : v] : null);
      });
      const all = points.flat().filter(Boolean);
      root.dataset.shown = shown.length;
      root.dataset.axis = key;
      root.dataset.across = state.time ? "time" : "epochs";
      if (!all.length) {
        make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "nothing to show");
        return;
      }
      let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const [x, y] of all) {
        x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
      }
      if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
      if (!log && key.startsWith("test_") && key !== "test_loss") {
        // The first epochs would press everything else against the upper edge.
        const sorted = all.map((p) => p[1]).sort((a, b) => a - b);
        y0 = Math.max(y0, sorted[Math.floor(sorted.length / 5)] - 6);
      }
      const room = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
      y0 -= room; y1 += room;
      const px = (x) => left + (x - x0) / (x1 - x0) * (right - left);
      const py = (y) => bottom - (Math.max(y, y0) - y0) / (y1 - y0) * (bottom - upper);
      for (const t of ticks(y0, y1, 6)) {
        make("line", { x1: left, x2: right, y1: py(t), y2: py(t), class: "grid" }, svg);
        make("text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, svg, short(log ? 10 ** t : t));
      }
      // There is no epoch between two.
      for (const t of ticks(x0, x1, width < 520 ? 4 : 8, state.time ? 0 : 1))
        make("text", { x: px(t), y: bottom + 16, "text-anchor": "middle" }, svg, short(t));
      make("text", { x: right, y: height - 4, "text-anchor": "end" }, svg, state.time ? unit[0] : "epoch");
      shown.forEach((c, i) => {
        let path = "", pen = "M";
        for (const [k, p] of points[i].entries()) {
          if (!p) { if (c.values[key][k] !== false) pen = "M"; continue; }
          path += `${pen}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`;
          pen = "L";
        }
        make("path", { d: path, fill: "none", style: `stroke: var(--${c.colour})`, class: "curve",
          "stroke-dasharray": c.dashed ? "6 4" : "none" }, svg);
        const kept = points[i].filter(Boolean);
        if (kept.length === 1)
          make("circle", { cx: px(kept[0][0]), cy: py(kept[0][1]), r: 3, style: `fill: var(--${c.colour})` }, svg);
      });
      const cross = make("line", { y1: upper, y2: bottom, class: "cross", visibility: "hidden" }, svg);
      const dots = make("g", {}, svg);
      svg.addEventListener("pointerleave", () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); dots.replaceChildren(); });
      const point = (event) => {
        const box = svg.getBoundingClientRect();
        const at = x0 + (event.clientX - box.left) / box.width * width / (right - left) * (x1 - x0)
          - left / (right - left) * (x1 - x0);
        const near = [];
        shown.forEach((c, i) => {
          let best = null;
          points[i].forEach((p, k) => {
            if (p && (!best || Math.abs(p[0] - at) < Math.abs(best.p[0] - at))) best = { p, k, c };
          });
          if (best) near.push(best);
        });
        if (!near.length) return;
        near.sort((a, b) => Math.abs(a.p[0] - at) - Math.abs(b.p[0] - at));
        const place = near[0].p[0];
        const reach = state.time ? (x1 - x0) * 0.03 : 1e-9;
        const rows = near.filter((n) => Math.abs(n.p[0] - place) <= reach).sort((a, b) => b.p[1] - a.p[1]);
        cross.setAttribute("x1", px(place)); cross.setAttribute("x2", px(place));
        cross.setAttribute("visibility", "visible");
        dots.replaceChildren();
        rows.forEach((n) => make("circle", { cx: px(n.p[0]), cy: py(n.p[1]), r: 3.2, style: `fill: var(--${n.c.colour})` }, dots));
        tip.replaceChildren();
        const head = document.createElement("b");
        head.textContent = state.time ? `${short(place)} ${unit[0]}` : `epoch ${place}`;
        tip.appendChild(head);
        rows.slice(0, 12).forEach((n) => {
          const line = document.createElement("div");
          const value = document.createElement("span");
          value.textContent = short(n.c.values[key][n.k]);
          line.style.setProperty("--mark", `var(--${n.c.colour})`);
          line.append(value, ` ${n.c.name}`);
          tip.appendChild(line);
        });
        if (rows.length > 12) {
          const more = document.createElement("div");
          more.textContent = `and ${rows.length - 12} more`;
          tip.appendChild(more);
        }
        tip.hidden = false;
        const side = px(place) > width / 2;
        tip.style.left = side ? "auto" : `${px(place) + 12}px`;
        tip.style.right = side ? `${width - px(place) + 12}px` : "auto";
      };
      svg.addEventListener("pointermove", point);
      svg.addEventListener("pointerdown", point);
    }
    draw();
    let last = frame.clientWidth;
    new ResizeObserver(() => {
      if (frame.clientWidth !== last) { last = frame.clientWidth; draw(); }
    }).observe(frame);
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const name = head.textContent;
      head.textContent = "";
      button(head, name, false, () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        [...table.tHead.rows[0].cells].forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (r) => {
          const text = r.cells[column].textContent.trim();
          const number = parseFloat(text.replace(/,/g, "").replace("−", "-"));
          return Number.isNaN(number) ? text : number;
        };
        const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
          : typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
        const body = table.tBodies[0];
        [...body.rows].map((r, i) => [value(r), i, r])
          .sort((a, b) => (down ? -1 : 1) * order(a[0], b[0]) || a[1] - b[1])
          .forEach(([, , r]) => body.appendChild(r));
      }).removeAttribute("aria-pressed");
    });
  }

  document.querySelectorAll(".chart").forEach(build);
  document.querySelectorAll("table.sortable").forEach(sortable);
})();
