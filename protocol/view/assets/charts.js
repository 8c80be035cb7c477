// Charts that one can work with: values under the pointer, zoom, a logarithmic axis, smoothing. The numbers come from
// charts/NAME.json or, in a report, from the page itself. Without this script there are the pictures that the program drew.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8;
  // What all charts along rounds share: the part that is shown, and where the pointer is.
  const rounds = { zoom: null, charts: new Set() };
  // What somebody chose, by the chart's name: it stays when the page is updated.
  const choices = new Map();
  const charts = new WeakMap();

  const element = (name, parent, attributes = {}, text = "") => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };

  const html = (name, parent, className = "", text = "") => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };

  // A number as the pages write it.
  const shown = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toFixed(2)} G`;
    if (size >= 1e6) return `${+(value / 1e6).toFixed(2)} M`;
    if (size >= 1e4) return `${+(value / 1e3).toFixed(1)} k`;
    if (size >= 100) return `${+value.toFixed(1)}`;
    return size >= 1e-3 || size === 0 ? `${+value.toFixed(3)}` : value.toExponential(1);
  };

  const ticks = (low, high, count) => {
    const rough = (high - low) / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
    return found;
  };

  const ticksOfPowers = (low, high, count) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const factor of [1, 2, 5]) found.push(factor * 10 ** power);
    }
    const within = found.filter((at) => at >= low && at <= high);
    return within.length >= 3 ? within : ticks(low, high, count).filter((at) => at > 0);
  };

  // Means over neighbours, of which the near ones weigh most: unlike a mean of what came before, they do not lag behind.
  const smoothed = (points, width) => {
    let from = 0;
    return points.map(([x]) => {
      while (points[from][0] < x - 3 * width) from += 1;
      let sum = 0, all = 0;
      for (let at = from; at < points.length && points[at][0] <= x + 3 * width; at += 1) {
        const weight = Math.exp(-(((points[at][0] - x) / width) ** 2) / 2);
        sum += weight * points[at][1];
        all += weight;
      }
      return [x, sum / all];
    });
  };

  // The place of the entry that is nearest to a value in an ordered list.
  const nearest = (list, value) => {
    let low = 0, high = list.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle] < value) low = middle; else high = middle;
    }
    return Math.abs(list[low] - value) <= Math.abs(list[high] - value) ? low : high;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.box = figure.querySelector(".chart");
      if (!choices.has(figure.id)) choices.set(figure.id, { log: false, smooth: 0, hidden: new Set(), zoom: null });
      this.choice = choices.get(figure.id);
      this.load();
    }

    async load() {
      try {
        const within = this.given ?? this.box.querySelector("script")?.textContent;
        this.given = within;
        this.plot = within ? JSON.parse(within) : await (await fetch(this.figure.dataset.chart)).json();
      } catch { return; /* The picture stays. */ }
      for (const series of this.plot.series) series.points = series.points.filter(([, y]) => y !== null);
      if (!this.svg) this.build();
      this.draw();
    }

    get shares() { return this.plot.x === "round"; }
    get zoom() { return this.shares ? rounds.zoom : this.choice.zoom; }
    set zoom(zoom) {
      if (!this.shares) this.choice.zoom = zoom; else rounds.zoom = zoom;
      this.all((chart) => chart.draw());
    }

    // This chart, or all that it shares its rounds with.
    all(act) {
      if (!this.shares) { act(this); return; }
      for (const chart of rounds.charts) {
        if (chart.figure.isConnected) act(chart); else rounds.charts.delete(chart);
      }
    }

    build() {
      if (this.shares) rounds.charts.add(this);
      this.box.replaceChildren();
      this.tools = document.createElement("div");
      this.tools.className = "tools";
      this.box.before(this.tools);
      if (this.plot.kind === "lines") {
        const smooth = html("label", this.tools, "", "Smoothing ");
        const slider = html("input", smooth);
        Object.assign(slider, { type: "range", min: 0, max: 5, step: 0.25, value: this.choice.smooth });
        slider.addEventListener("input", () => { this.choice.smooth = Number(slider.value); this.draw(); });
        const label = html("label", this.tools);
        const log = html("input", label);
        Object.assign(log, { type: "checkbox", checked: this.choice.log });
        label.append(" Logarithmic");
        log.addEventListener("change", () => { this.choice.log = log.checked; this.draw(); });
      }
      this.whole = html("button", this.tools, "", "Show all");
      this.whole.type = "button";
      this.whole.addEventListener("click", () => { this.zoom = null; });
      html("span", this.tools, "hint", "Drag to zoom in.");
      this.svg = element("svg", this.box);
      this.tip = html("div", this.box, "tip");
      this.tip.setAttribute("role", "status");
      this.tip.hidden = true;
      this.box.tabIndex = 0;
      this.box.classList.add("drawn");
      this.listen();
      this.toggles();
      new ResizeObserver(() => { if (this.width !== this.box.clientWidth) this.draw(); }).observe(this.box);
    }

    // Whoever clicks on a line's name hides it, or shows it again.
    toggles() {
      for (const item of this.figure.querySelectorAll(".legend li")) {
        const name = item.textContent;
        if (!this.plot.series.some((series) => series.name === name)) continue;
        item.replaceChildren();
        const button = html("button", item, "", name);
        button.type = "button";
        const press = () => button.setAttribute("aria-pressed", String(!this.choice.hidden.has(name)));
        press();
        button.addEventListener("click", () => {
          if (!this.choice.hidden.delete(name)) this.choice.hidden.add(name);
          press();
          this.draw();
        });
      }
    }

    listen() {
      const at = (event) => event.clientX - this.box.getBoundingClientRect().left;
      let from = null;
      this.box.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        from = at(event);
        this.box.setPointerCapture(event.pointerId);
      });
      this.box.addEventListener("pointermove", (event) => {
        this.point(this.value(at(event)));
        if (from !== null) this.select(from, at(event));
      });
      this.box.addEventListener("pointerup", (event) => {
        const [low, high] = [from, at(event)].sort((a, b) => a - b);
        if (from !== null && high - low > 8) {
          this.zoom = [this.value(low), this.value(high)];
        } else if (from !== null) {
          this.point(this.value(at(event)));
        }
        from = null;
        this.select(0, 0);
      });
      this.box.addEventListener("pointercancel", () => { from = null; this.select(0, 0); });
      this.box.addEventListener("pointerleave", () => { if (from === null) this.point(null); });
      this.box.addEventListener("blur", () => this.point(null));
      this.box.addEventListener("dblclick", () => { this.zoom = null; });
      this.box.addEventListener("keydown", (event) => { if (this.key(event)) event.preventDefault(); });
    }

    // What a key does; whether it is one that does something.
    key(event) {
      const xs = this.xs, [low, high] = this.range;
      const middle = this.cursor ?? (low + high) / 2;
      const step = (by) => this.point(xs[Math.min(Math.max(nearest(xs, middle) + by, 0), xs.length - 1)]);
      const scale = (by) => [middle - (middle - low) * by, middle + (high - middle) * by];
      switch (event.key) {
        case "ArrowLeft": step(event.shiftKey ? -10 : -1); return true;
        case "ArrowRight": step(event.shiftKey ? 10 : 1); return true;
        case "Home": this.point(xs[0]); return true;
        case "End": this.point(xs[xs.length - 1]); return true;
        case "+": this.zoom = scale(0.5); return true;
        case "-": this.zoom = this.zoom && high - low < this.extent[1] - this.extent[0] ? scale(2) : null; return true;
        case "Escape": this.zoom = null; this.point(null); return true;
        default: return false;
      }
    }

    // What is drawn of each line: what it stands for, its points, those that they were made of, and the line that it lies on.
    layers() {
      const { kind, series } = this.plot;
      // In hundredths of what there is.
      const width = this.choice.smooth / 100 * (this.extent[1] - this.extent[0]);
      let below = null;
      return series.map(({ name, points }, place) => {
        const layer = { name, place, colour: `s${place % COLOURS + 1}`, hidden: this.choice.hidden.has(name), values: points };
        if (layer.hidden) return layer;
        layer.points = kind === "lines" && this.choice.smooth > 0 ? smoothed(points, width) : points;
        if (kind === "areas") {
          const under = below;
          layer.below = points.map(([x], index) => [x, under?.[index]?.[1] ?? 0]);
          layer.points = below = points.map(([x, y], index) => [x, y + layer.below[index][1]]);
        }
        return layer;
      });
    }

    draw() {
      const { plot } = this;
      this.width = this.box.clientWidth;
      if (this.width === 0) return;
      const height = this.width < 480 ? 260 : 320;
      const every = plot.series.flatMap(({ points }) => points.map(([x]) => x));
      this.xs = [...new Set(every)].sort((a, b) => a - b);
      if (this.xs.length === 0) return;
      this.extent = [this.xs[0], this.xs[this.xs.length - 1]];
      for (const { at } of plot.marks) this.extent = [Math.min(this.extent[0], at), Math.max(this.extent[1], at)];
      if (plot.kind === "points") this.extent = [this.extent[0] - 1, this.extent[1] + 1];
      if (this.extent[0] === this.extent[1]) this.extent = [this.extent[0] - 0.5, this.extent[1] + 0.5];
      const visible = (this.drawn = this.layers()).filter((layer) => !layer.hidden);
      const [least, most] = this.extent;
      const low = Math.max(this.zoom?.[0] ?? least, least), high = Math.min(this.zoom?.[1] ?? most, most);
      this.range = high > low ? [low, high] : this.extent;
      this.whole.hidden = this.range[0] === least && this.range[1] === most;
      const [bottom, top, log] = this.heights(visible);
      const marksOf = log ? ticksOfPowers(bottom, top, 6) : ticks(bottom, top, 6);
      const left = 16 + 7.5 * Math.max(...marksOf.map((at) => shown(at).length), 1);
      const area = this.area = { left, right: this.width - 12, top: 26, bottom: height - 40 };
      this.x = (value) => left + (value - this.range[0]) / (this.range[1] - this.range[0]) * (area.right - left);
      const place = log ? Math.log : (value) => value;
      const share = (value) => (place(value) - place(bottom)) / (place(top) - place(bottom));
      this.y = (value) => area.bottom - share(value) * (area.bottom - area.top);
      this.paint(visible, marksOf, height);
      this.show();
    }

    // The values at the lower and the upper end of the chart, and whether the axis is logarithmic.
    heights(visible) {
      const { kind, levels } = this.plot;
      const [low, high] = this.range;
      const within = ([x]) => x >= low && x <= high;
      const drawn = ({ points, values }) => (kind === "lines" ? [...points, ...values] : points);
      let values = visible.flatMap((layer) => drawn(layer).filter(within).map(([, y]) => y));
      // Whoever looks at a part wants to see its lines, and not how far the simple models are.
      if (!this.zoom) values = values.concat(levels.map(([, level]) => level));
      if (values.length === 0) values = [0, 1];
      let least = values.reduce((a, b) => Math.min(a, b)), most = values.reduce((a, b) => Math.max(a, b));
      const log = this.choice.log && kind === "lines" && values.some((value) => value > 0);
      if (log) {
        least = values.filter((value) => value > 0).reduce((a, b) => Math.min(a, b));
        return least < most ? [least / (most / least) ** 0.05, most * (most / least) ** 0.05, true] : [least / 2, most * 2, true];
      }
      if (least === most) [least, most] = [least - 0.5, most + 0.5];
      const room = 0.06 * (most - least);
      const fromZero = kind !== "lines" || least >= 0 && (least < 0.4 * most || least < room);
      return [fromZero ? Math.min(0, least) : least - room, most + room, false];
    }

    paint(visible, heights, height) {
      const { svg, area, plot } = this;
      svg.replaceChildren();
      svg.setAttribute("width", this.width);
      svg.setAttribute("height", height);
      const clip = `clip-${this.figure.id}`;
      const path = element("clipPath", element("defs", svg), { id: clip });
      const inner = { x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top };
      element("rect", path, { ...inner, y: area.top - 8, height: inner.height + 9 });
      for (const at of heights) {
        const y = this.y(at);
        element("line", svg, { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y });
        element("text", svg, { x: area.left - 8, y: y + 5, "text-anchor": "end" }, shown(at));
      }
      const across = ticks(...this.range, Math.max(2, Math.floor(this.width / 90)));
      for (const at of across) {
        if ((this.shares || plot.kind === "points") && !Number.isInteger(+at.toFixed(6))) continue;
        const x = this.x(at);
        element("line", svg, { class: "grid", x1: x, x2: x, y1: area.top, y2: area.bottom + 4 });
        element("text", svg, { x: Math.min(x, area.right - 8), y: area.bottom + 20, "text-anchor": "middle" }, shown(at));
      }
      element("text", svg, { class: "name", x: 4, y: 15 }, plot.y);
      element("text", svg, { class: "name", x: area.right, y: height - 4, "text-anchor": "end" }, plot.x);
      const within = element("g", svg, { "clip-path": `url(#${clip})` });
      for (const mark of plot.marks) {
        const x = this.x(mark.at);
        element("line", within, { class: `mark ${mark.kind}`, x1: x, x2: x, y1: area.top, y2: area.bottom });
        const top = area.top;
        element("path", within, { class: `mark ${mark.kind}`, d: `M${x - 5} ${top - 7}h10l-5 8z` });
      }
      plot.levels.forEach(([, level], place) => {
        const y = this.y(level);
        if (Number.isFinite(y)) element("line", within, { class: `level level${place % 2 + 1}`, x1: area.left, x2: area.right, y1: y, y2: y });
      });
      for (const layer of [...visible].reverse()) this.line(within, layer);
      this.select(0, 0);
    }

    line(parent, { colour, points, values, below }) {
      const { kind } = this.plot;
      const to = ([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
      const drawable = (list) => list.filter(([, y]) => Number.isFinite(this.y(y)));
      if (kind === "areas") {
        const outline = [...points, ...[...below].reverse()].map(to);
        if (outline.length > 2) element("path", parent, { class: `area ${colour}`, d: `M${outline.join("L")}Z` });
        return;
      }
      const path = (list, className) => {
        const dots = drawable(list).map(to);
        if (dots.length > 1) element("path", parent, { class: `line ${className} ${colour}`, d: `M${dots.join("L")}` });
      };
      if (kind === "lines") {
        if (points !== values) path(values, "raw");
        path(points, "");
      }
      const [low, high] = this.range;
      const seen = drawable(points).filter(([x]) => x >= low && x <= high);
      if (kind === "points" || seen.length <= 40) {
        for (const [x, y] of seen) {
          element("circle", parent, { class: `dot ${colour}`, cx: this.x(x), cy: this.y(y), r: kind === "points" ? 5 : 3 });
        }
      }
    }

    value(pixel) {
      const { area, range: [low, high] } = this;
      const share = (pixel - area.left) / (area.right - area.left);
      return low + Math.min(Math.max(share, 0), 1) * (high - low);
    }

    // Marks what would be zoomed into.
    select(from, to) {
      this.selection?.remove();
      const { area } = this;
      const [low, high] = [from, to].sort((a, b) => a - b).map((at) => Math.min(Math.max(at, area.left), area.right));
      if (high - low < 1) return;
      this.selection = element("rect", this.svg, {
        class: "selection", x: low, width: high - low, y: area.top, height: area.bottom - area.top,
      });
    }

    // The pointer is at a value, or away; the line across is drawn in all charts, the values here.
    point(value) {
      this.all((chart) => {
        chart.cursor = value;
        chart.told = chart === this;
        chart.show();
      });
    }

    show() {
      this.across?.remove();
      this.tip.hidden = true;
      const [low, high] = this.range;
      const seen = this.xs.filter((x) => x >= low && x <= high);
      if (this.cursor === null || this.cursor === undefined || seen.length === 0) return;
      const at = seen[nearest(seen, this.cursor)], x = this.x(at), { area } = this;
      this.across = element("g", this.svg, { class: "across" });
      element("line", this.across, { x1: x, x2: x, y1: area.top, y2: area.bottom });
      const lines = [];
      for (const layer of this.drawn.filter(({ hidden }) => !hidden)) {
        if (layer.points.length === 0) continue;
        const index = nearest(layer.points.map(([place]) => place), at);
        const [place, mean] = layer.points[index], y = this.y(mean);
        if (place === at && Number.isFinite(y)) element("circle", this.across, { class: `dot ${layer.colour}`, cx: x, cy: y, r: 4 });
        // What is measured now and then is told as it was nearby.
        const where = place === at ? "" : ` at ${shown(place)}`;
        lines.push([layer.colour, layer.name + where, layer.values[index][1], mean]);
      }
      if (this.told) this.tell(at, x, lines);
    }

    tell(at, x, lines) {
      const { plot, tip, area } = this;
      tip.replaceChildren();
      html("strong", tip, "", `${plot.x} ${shown(at)}`);
      for (const [colour, name, value, mean] of lines) {
        const row = html("div", tip, `row ${colour}`);
        html("span", row, "", name);
        html("b", row, "", shown(value) + (plot.kind === "lines" && this.choice.smooth > 0 ? ` (${shown(mean)})` : ""));
      }
      for (const mark of plot.marks.filter((mark) => Math.abs(this.x(mark.at) - x) < 5)) {
        html("div", tip, `row mark ${mark.kind}`, `${shown(mark.at)}: ${mark.text}`);
      }
      tip.hidden = false;
      const room = 14, right = x + room + tip.offsetWidth <= this.width;
      const left = right ? x + room : Math.max(0, x - room - tip.offsetWidth);
      tip.style.left = `${left}px`;
      tip.style.top = `${area.top + 4}px`;
    }
  }

  const attach = () => {
    for (const figure of document.querySelectorAll("figure.plot")) {
      if (!charts.has(figure)) charts.set(figure, new Chart(figure));
    }
  };

  // For live.js: takes over what a newer section says, if its chart is drawn here; whether it did.
  const refresh = (section, newer) => {
    const [figure, next] = [section, newer].map((part) => part.querySelector("figure.plot"));
    const chart = charts.get(figure);
    if (!chart?.svg || figure.id !== next?.id) return false;
    section.className = newer.className;
    const [legend, wanted] = [figure, next].map((part) => part.querySelector(".legend"));
    if (legend?.textContent !== wanted?.textContent) {
      legend?.remove();
      if (wanted) figure.prepend(wanted.cloneNode(true));
      chart.toggles();
    }
    figure.querySelector("figcaption").replaceWith(next.querySelector("figcaption").cloneNode(true));
    const [texts, now] = [section, newer].map((part) => [...part.children].filter((child) => child.tagName === "P"));
    texts.forEach((text, place) => { if (now[place]) text.textContent = now[place].textContent; });
    if (figure.dataset.chart !== next.dataset.chart) {
      figure.dataset.chart = next.dataset.chart;
      chart.load();
    }
    return true;
  };

  window.musterCharts = { attach, refresh };
  attach();
})();
