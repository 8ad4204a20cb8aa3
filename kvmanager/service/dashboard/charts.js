// Small charts in SVG. Each says in one sentence what it shows; its panel has the same as a table.

import { el, svg } from "/dashboard/dom.js";
import { moment } from "/dashboard/format.js";

const HEIGHT = 190;
const PAD = { right: 12, top: 10, bottom: 24 };
const LETTER = 6.6; // no letter of a tick is wider on average

// parts: {name, value, text, color}; a bar of shares with its legend
export function shares(label, parts) {
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  let at = 0;
  const pieces = whole === 0 ? [] : parts.filter((part) => part.value > 0).map((part) => {
    const width = (100 * part.value) / whole;
    const piece = svg("rect", { x: at, y: 0, width, height: 10, class: `fill-${part.color}` },
      svg("title", {}, `${part.name}: ${part.text}`));
    at += width;
    return piece;
  });
  return [
    svg("svg", { class: "shares", viewBox: "0 0 100 10", preserveAspectRatio: "none",
      role: "img", "aria-label": `${label}: ${parts.map((p) => `${p.name} ${p.text}`).join(", ")}` },
      svg("rect", { x: 0, y: 0, width: 100, height: 10, class: "track" }), pieces),
    legend(parts),
  ];
}

export const legend = (parts) =>
  el("ul", { class: "legend" }, parts.map((part) =>
    el("li", {}, el("span", { class: `swatch fill-${part.color}`, "aria-hidden": "true" }),
      el("span", { class: "name" }, part.name), part.text && el("span", { class: "value" }, part.text))));

// rows: {name, value, text}; horizontal bars, the longest as wide as there is room
export function bars(rows, color) {
  const most = Math.max(...rows.map((row) => row.value), 1);
  return el("ul", { class: "bars" }, rows.map((row) =>
    el("li", {},
      el("span", { class: "name" }, row.name), el("span", { class: "value" }, row.text),
      el("span", { class: "bar", "aria-hidden": "true" },
        el("span", { class: `fill-${row.color || color}`, "--part": `${(100 * row.value) / most}%` })))));
}

// columns: {name, value, text}; a histogram
export function histogram(label, columns, color, width) {
  const height = 150;
  const most = Math.max(...columns.map((column) => column.value), 1);
  const room = width - 16;
  const step = room / columns.length;
  const every = Math.ceil(columns.length / Math.max(2, Math.floor(room / 58)));
  const marks = columns.map((column, n) => {
    const tall = column.value ? Math.max(2, (column.value / most) * (height - 34)) : 0;
    return [
      svg("rect", { x: 8 + n * step + 1, y: height - 22 - tall, width: Math.max(1, step - 2),
        height: tall, rx: 2, class: `fill-${color}` },
        svg("title", {}, `${column.name}: ${column.text}`)),
      n % every === 0 && svg("text", { x: 8 + (n + 0.5) * step, y: height - 6, class: "tick middle" },
        column.name),
    ];
  });
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label, height },
    svg("line", { x1: 8, x2: width - 8, y1: height - 22, y2: height - 22, class: "axis" }), marks);
}

// a row of thin columns beside a number
export function spark(values) {
  const most = Math.max(...values, 1);
  const step = 88 / Math.max(values.length, 1);
  return svg("svg", { class: "spark", viewBox: "0 0 88 22", "aria-hidden": "true", width: 88, height: 22 },
    values.map((value, n) => {
      const tall = value ? Math.max(1.5, (20 * value) / most) : 0;
      return svg("rect", { x: n * step, y: 21 - tall, width: Math.max(1, step - 0.6), height: tall,
        class: "fill-main" });
    }));
}

// series: {name, color, values}; times: where each interval ends; null is a gap
export function over(label, begin, times, series, options) {
  const { width, format, stacked } = options;
  const shown = stacked ? stack(series) : series.map((one) => ({ ...one, floor: null }));
  const high = nice(Math.max(...shown.flatMap((one) => one.values.filter((v) => v !== null)), 0),
    options.binary ? 1024 : 1000);
  const end = times.at(-1);
  const longest = Math.max(...[0, 0.5, 1].map((part) => format(high * part).length));
  const edge = Math.ceil(16 + LETTER * longest);
  const x = (time) => edge + ((time - begin) / Math.max(end - begin, 1e-9)) * (width - edge - PAD.right);
  const y = (value) => HEIGHT - PAD.bottom - (value / high) * (HEIGHT - PAD.top - PAD.bottom);
  const grid = [0, 0.5, 1].map((part) => [
    svg("line", { x1: edge, x2: width - PAD.right, y1: y(high * part), y2: y(high * part),
      class: part ? "grid" : "axis" }),
    svg("text", { x: edge - 8, y: y(high * part) + 4, class: "tick end" }, format(high * part)),
  ]);
  const labels = width > 480 ? 5 : 3;
  const ticks = Array.from({ length: labels }, (_, n) => {
    const time = begin + ((end - begin) * n) / (labels - 1);
    const side = n === 0 ? "start" : n === labels - 1 ? "end" : "middle";
    return svg("text", { x: x(time), y: HEIGHT - 6, class: `tick ${side}` }, moment(time, end - begin));
  });
  const starts = [begin, ...times.slice(0, -1)];
  const drawn = shown.map((one) => trace(one, starts, times, x, y, stacked)).reverse();
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": label, height: HEIGHT }, grid, drawn, ticks);
  const readout = el("p", { class: "readout", "aria-hidden": "true" });
  follow(picture, readout, { width, edge, begin, end, times, series, format });
  return [picture, readout];
}

function trace(one, starts, times, x, y, stacked) {
  const runs = [];
  let run = null;
  one.values.forEach((value, n) => {
    if (value === null) {
      run = null;
      return;
    }
    if (!run) runs.push((run = []));
    run.push([(x(starts[n]) + x(times[n])) / 2, y(value), y(one.floor ? one.floor[n] : 0)]);
  });
  return runs.map((points) => {
    const line = points.map(([px, py], n) => `${n ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    const back = points.toReversed().map(([px, , py]) => `L${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    const lone = points.length === 1 && svg("circle", { cx: points[0][0], cy: points[0][1], r: 2.5, class: `fill-${one.color}` });
    return [
      (stacked || one.area) && svg("path", { d: `${line}${back}Z`, class: `area fill-${one.color}` }),
      svg("path", { d: line, class: `line stroke-${one.color}` }), lone,
    ];
  });
}

function stack(series) {
  const floor = series[0].values.map(() => 0);
  return series.map((one) => {
    const under = [...floor];
    const values = one.values.map((value, n) => (floor[n] += value || 0));
    return { ...one, values: [...values], floor: under };
  });
}

// the pointer reads the nearest interval
function follow(picture, readout, { width, edge, begin, end, times, series, format }) {
  const mark = svg("line", { y1: PAD.top, y2: HEIGHT - PAD.bottom, class: "mark" });
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * width - edge) / (width - edge - PAD.right);
    const time = begin + Math.min(1, Math.max(0, part)) * (end - begin);
    const found = times.findIndex((one) => one >= time);
    const n = found < 0 ? times.length - 1 : found;
    const at = edge + ((times[n] - begin) / Math.max(end - begin, 1e-9)) * (width - edge - PAD.right);
    fillMark(mark, at);
    picture.append(mark);
    readout.textContent = `${moment(times[n], end - begin)}  ` +
      series.map((one) => `${one.name} ${one.values[n] === null ? "unknown" : format(one.values[n])}`).join("   ");
  });
  picture.addEventListener("pointerleave", () => {
    mark.remove();
    readout.textContent = "";
  });
}

function fillMark(mark, at) {
  mark.setAttribute("x1", at);
  mark.setAttribute("x2", at);
}

// the least of 1, 2, 5 times a power that is not below
function nice(value, base) {
  if (value <= 0) return 1;
  const unit = base === 1024 && value >= 1024 ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  const rounded = [1, 2, 5, 10].find((n) => n * power >= value / unit);
  return rounded * power * unit;
}
