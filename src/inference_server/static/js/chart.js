// A line chart as SVG. Values may be null: the line has a gap there. It redraws by changing path data only.

import { svg, write } from "./dom.js";

const WIDTH = 400;
const HEIGHT = 132;
const LEFT = 46;
const BOTTOM = 18;
const TOP = 8;

/** The smallest of 1, 2, 5 times a power of ten that is not below `value`. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
}

export class LineChart {
  /** names: one class a line, drawn in order. format, mark: write a value, and one of the axis. seconds: what the x axis spans. */
  constructor(parent, { names, format, mark = format, seconds, label, area = false }) {
    Object.assign(this, { names, format, mark, seconds, label });
    this.lines = names.map((name) => svg("path", { class: `line ${name}` }));
    this.area = area ? svg("path", { class: `area ${names[0]}` }) : null;
    this.ticks = [0, 0.5, 1].map((share) => {
      const y = this.y(share);
      return svg("text", { x: LEFT - 8, y: y + 3.5, "text-anchor": "end" });
    });
    const grid = [0, 0.5, 1].map((share) => svg("line", { x1: LEFT, x2: WIDTH, y1: this.y(share), y2: this.y(share), class: "grid" }));
    const times = [
      svg("text", { x: LEFT, y: HEIGHT - 3 }, `${seconds} s ago`),
      svg("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
    ];
    this.root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "plot" });
    this.root.append(...grid, ...(this.area ? [this.area] : []), ...this.lines, ...this.ticks, ...times);
    parent.append(this.root);
    this.draw(names.map(() => []));
  }

  y(share) {
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
  }

  /** series: one list of values a line, oldest first, the last at `now`; one value a second. */
  draw(series) {
    const largest = Math.max(...series.flat().filter((value) => value !== null), 0);
    const top = largest > 0 ? ceiling(largest) : 1;
    series.forEach((values, index) => this.lines[index].setAttribute("d", this.path(values, top)));
    if (this.area) this.area.setAttribute("d", this.closed(series[0], top));
    this.ticks.forEach((tick, index) => write(tick, largest > 0 || index === 0 ? this.mark((top * index) / 2) : ""));
    const latest = series.map((values, index) => `${this.names[index]} ${this.format(values.at(-1) ?? null)}`);
    this.root.setAttribute("aria-label", `${this.label}: ${latest.join(", ")}`);
  }

  x(index, length) {
    return WIDTH - ((length - 1 - index) * (WIDTH - LEFT)) / (this.seconds - 1);
  }

  path(values, top) {
    let pen = "M";
    return values.reduce((path, value, index) => {
      if (value === null) {
        pen = "M";
        return path;
      }
      const step = `${pen}${this.x(index, values.length).toFixed(1)} ${this.y(value / top).toFixed(1)}`;
      pen = "L";
      return path + step;
    }, "");
  }

  closed(values, top) {
    const line = this.path(values, top);
    return line && `${line}L${WIDTH} ${this.y(0)}L${this.x(0, values.length).toFixed(1)} ${this.y(0)}Z`;
  }
}
