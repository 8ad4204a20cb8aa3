// Building elements. Text is always text: names come from other people.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.setAttribute("class", value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
  return node;
}

export const el = (name, attributes, ...children) =>
  fill(document.createElement(name), attributes, children);

export const svg = (name, attributes, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

// columns: {title, number?, wide?, wraps?}; a cell is text, an element, or null for what is unknown
export function table(caption, columns, rows) {
  const shape = (column) =>
    [column.number && "number", column.wide && "wide-only", column.wraps && "wraps"].filter(Boolean).join(" ") || undefined;
  const head = columns.map((column) =>
    el("th", { scope: "col", class: shape(column) }, column.title));
  const body = rows.map((row) => el("tr", {}, row.map((cell, n) =>
    n === 0
      ? el("th", { scope: "row", class: shape(columns[0]) }, cell)
      : el("td", { class: shape(columns[n]) }, cell ?? unknown()))));
  return el("table", {}, el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}

export const unknown = () => el("span", { class: "unknown" }, "unknown");

export const nothing = (text) => el("p", { class: "nothing" }, text);
