"use strict";
// Charts as SVG, each with the same numbers as a table for those who don't see it.
// Nothing here knows of jobs; everything is text set by textContent, never markup.

const charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEAST_WIDTH = 240;
  const HEIGHT = 180;
  const LABEL = 32;
  const LEFT = 64;
  const BOTTOM = 22;
  const TOP = 8;

  function node(name, attributes = {}, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  }

  function element(name, attributes = {}, text = "") {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== "") made.textContent = text;
    return made;
  }

  function shown(value) {
    if (value === null || value === undefined || value === "") return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  }

  // A chart is drawn in the page's pixels, so that its letters are as large as the page's.
  function widthOf(target) {
    return Math.max(LEAST_WIDTH, Math.floor(target.clientWidth));
  }

  function frame(label, width, height = HEIGHT) {
    return node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  }

  // A table of the numbers behind a chart: heads, then rows of cells.
  function behind(caption, heads, rows) {
    const box = element("div", { class: "hidden-table" });
    box.append(table(element("table"), caption, heads, rows));
    return box;
  }

  function table(target, caption, heads, rows) {
    const body = element("tbody");
    for (const row of rows) {
      const line = element("tr");
      row.forEach((cell, index) => {
        const kind = index === 0 ? "th" : "td";
        const made = element(kind, kind === "th" ? { scope: "row" } : {}, shown(cell));
        if (typeof cell === "number") made.classList.add("number");
        if (typeof cell === "string" && cell.length > 40) made.classList.add("words");
        line.append(made);
      });
      body.append(line);
    }
    const head = element("thead");
    const line = element("tr");
    heads.forEach((text, index) => {
      const made = element("th", { scope: "col" }, text);
      if (rows.length && typeof rows[0][index] === "number") made.classList.add("number");
      line.append(made);
    });
    head.append(line);
    target.replaceChildren(element("caption", {}, caption), head, body);
    return target;
  }

  // series: [{name, color, points: [[x, y], ...]}], x in seconds; now is the right end.
  function curves(target, label, series, now) {
    const points = series.flatMap((each) => each.points).filter(([, y]) => Number.isFinite(y));
    const across = widthOf(target);
    const svg = frame(label, across);
    if (!points.length) {
      svg.append(node("text", { x: LEFT, y: HEIGHT / 2 }, "nothing yet"));
      target.replaceChildren(svg);
      return;
    }
    const first = Math.min(...points.map(([x]) => x));
    const span = Math.max(now - first, 10);
    let low = Math.min(0, ...points.map(([, y]) => y));
    let high = Math.max(...points.map(([, y]) => y));
    const least = Math.min(...points.map(([, y]) => y));
    if (least > 0.5 * high) low = least - 0.1 * (high - least);
    if (high === low) { high += 1; }
    const x = (at) => LEFT + ((at - (now - span)) / span) * (across - LEFT - 8);
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    for (const part of [0, 0.5, 1]) {
      const value = low + part * (high - low);
      svg.append(node("line", { class: "axis", x1: LEFT, x2: across - 8, y1: y(value), y2: y(value) }));
      svg.append(node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, shown(Number(value.toPrecision(3)))));
    }
    svg.append(node("text", { x: LEFT, y: HEIGHT - 6 }, `${Math.round(span)} s ago`));
    svg.append(node("text", { x: across - 8, y: HEIGHT - 6, "text-anchor": "end" }, "now"));
    for (const each of series) {
      const path = each.points
        .filter(([, value]) => Number.isFinite(value))
        .map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`)
        .join("");
      svg.append(node("path", { class: `curve s${each.color % 8}`, d: path }));
    }
    const rows = series.map((each) => {
      const values = each.points.map(([, value]) => value).filter(Number.isFinite);
      return [each.name, values.at(-1) ?? null, Math.min(...values), Math.max(...values)];
    });
    target.replaceChildren(svg, behind(label, ["who", "now", "least", "most"], rows));
  }

  // rows: [{name, parts: [number, ...]}]; parts of a row lie behind each other, up to 1.
  function stacks(target, label, names, rows) {
    const height = Math.max(40, rows.length * 26 + 8);
    const across = widthOf(target);
    const svg = frame(label, across, height);
    rows.forEach((row, index) => {
      const top = index * 26 + 6;
      svg.append(node("text", { x: LEFT + 8, y: top + 13, "text-anchor": "end" }, row.name));
      let from = LEFT + 14;
      row.parts.forEach((part, color) => {
        const width = Math.max(0, part) * (across - LEFT - 22);
        svg.append(node("rect", { class: `f${color % 8}`, x: from, y: top, width, height: 18 }));
        from += width;
      });
    });
    const cells = rows.map((row) => [row.name, ...row.parts.map((part) => `${(100 * part).toFixed(0)} %`)]);
    target.replaceChildren(svg, behind(label, ["who", ...names], cells));
  }

  // bars: [[name, count], ...]
  function bars(target, label, counts) {
    const across = widthOf(target);
    const svg = frame(label, across);
    const most = Math.max(1, ...counts.map(([, count]) => count));
    const width = (across - LEFT - 8) / Math.max(counts.length, 6);
    const each = Math.max(1, Math.ceil(LABEL / width));
    counts.forEach(([name, count], index) => {
      const height = (count / most) * (HEIGHT - TOP - BOTTOM);
      const left = LEFT + index * width;
      svg.append(node("rect", { class: "f0", x: left + 2, y: HEIGHT - BOTTOM - height, width: width - 4, height }));
      if (index % each === 0) {
        svg.append(node("text", { x: left + width / 2, y: HEIGHT - 6, "text-anchor": "middle" }, name));
      }
    });
    svg.append(node("text", { x: LEFT - 6, y: TOP + 8, "text-anchor": "end" }, shown(most)));
    if (!counts.length) svg.append(node("text", { x: LEFT, y: HEIGHT / 2 }, "nothing yet"));
    target.replaceChildren(svg, behind(label, ["at most", "samples"], counts));
  }

  function legend(target, names) {
    target.replaceChildren(
      ...names.map((name, color) => {
        const mark = node("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
        mark.append(node("rect", { class: `f${color % 8}`, width: 10, height: 10 }));
        const item = element("span");
        item.append(mark, name);
        return item;
      }),
    );
  }

  return { bars, curves, element, legend, shown, stacks, table };
})();
