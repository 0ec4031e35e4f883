// A line chart as SVG: axes with units, a legend, and the values under the pointer or the arrow keys.
// It knows numbers and how to write them, and nothing of runs.

const SVG = "http://www.w3.org/2000/svg";
const EDGE = { top: 10, right: 14, bottom: 40, left: 64 };

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function html(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Round steps for `count` ticks or fewer between two numbers. `units` are the steps' units in ascending order.
export function ticks(low, high, count, units = [1]) {
  const least = (high - low) / Math.max(count, 1);
  if (!(least > 0)) return [low];
  const unit = units.filter((unit) => unit <= high).at(-1) ?? units[0];
  const power = 10 ** Math.floor(Math.log10(least / unit));
  const step = unit * power * ([1, 2, 5].find((factor) => factor * power * unit >= least * 0.999999) ?? 10);
  return multiples(low, high, step);
}

const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

// Steps that clocks have, for an axis in seconds.
export function clockTicks(low, high, count) {
  const least = (high - low) / Math.max(count, 1);
  if (least < 1) return ticks(low, high, count);
  const step = CLOCK.find((step) => step >= least) ?? 86400 * Math.ceil(least / 86400);
  return multiples(low, high, step);
}

function multiples(low, high, step) {
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step + 0); // -0 is written as such
  return found;
}

// The place of the point of `points` whose x is nearest.
function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}

export class Chart {
  // `words`: label, x and y (names of the axes), writeX and writeY (a number in few words), readX and readY (in more), ticksX, ticksY,
  // fromZero, empty (what to say without points).
  constructor(place, words) {
    this.words = words;
    this.place = place;
    this.series = [];
    this.at = null;
    this.legend = html("div", "legend");
    this.svg = shape("svg", { role: "img", tabindex: "0" });
    this.readout = html("div", "readout");
    this.readout.hidden = true;
    this.spoken = html("p", "hidden");
    this.spoken.setAttribute("aria-live", "polite");
    place.append(this.legend, this.svg, this.readout, this.spoken);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("blur", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.svg);
  }

  // Each of `series` has name, kind (its CSS class), points ([x, y], x ascending), and may have note (said in the
  // legend), level (holds until the next point), dots, outside (shown in the legend alone).
  draw(series) {
    this.series = series.filter((one) => one.points.length > 0);
    this.legend.replaceChildren(...this.series.map((one) => {
      const item = html("span");
      const sample = shape("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
      sample.append(shape("path", { class: one.kind, d: "M0 4H26" }));
      item.append(sample, one.note ? `${one.name} ${one.note}` : one.name);
      return item;
    }));
    this.drawn = this.series.filter((one) => !one.outside);
    this.paint();
  }

  paint() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (width === 0) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const points = (this.drawn ?? []).flatMap((one) => one.points);
    if (points.length === 0) {
      this.scale = null;
      this.svg.setAttribute("aria-label", this.words.empty);
      const said = shape("text", { class: "empty", x: width / 2, y: height / 2 }, this.words.empty);
      return this.svg.replaceChildren(said);
    }
    this.scale = this.measure(points, width, height);
    const curves = this.drawn.flatMap((one) => this.curve(one));
    this.cursor = shape("line", { class: "cursor", y1: EDGE.top, y2: height - EDGE.bottom, visibility: "hidden" });
    this.svg.replaceChildren(...this.axes(width, height), ...curves, this.cursor);
    const last = (one) => `${one.name} ${this.words.writeY(one.points.at(-1)[1])}`;
    this.svg.setAttribute("aria-label", `${this.words.label}. Last: ${this.drawn.map(last).join(", ")}.`);
    this.look(this.at);
  }

  measure(points, width, height) {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const [x, y] of points) {
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [low, high] = [Math.min(low, y), Math.max(high, y)];
    }
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    high += room;
    low = this.words.fromZero ? 0 : low - room;
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    const [across, down] = [width - EDGE.left - EDGE.right, height - EDGE.top - EDGE.bottom];
    return {
      left, right, low, high,
      x: (x) => EDGE.left + ((x - left) / (right - left)) * across,
      y: (y) => EDGE.top + ((high - y) / (high - low)) * down,
      back: (place) => left + ((place - EDGE.left) / across) * (right - left),
    };
  }

  axes(width, height) {
    const { scale, words } = this;
    const floor = height - EDGE.bottom;
    const made = [];
    for (const y of words.ticksY(scale.low, scale.high, Math.floor((floor - EDGE.top) / 32))) {
      made.push(shape("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: scale.y(y), y2: scale.y(y) }));
      const place = { x: EDGE.left - 8, y: scale.y(y) + 4, "text-anchor": "end" };
      made.push(shape("text", place, words.writeY(y)));
    }
    const count = Math.floor((width - EDGE.left - EDGE.right) / 72);
    for (const x of words.ticksX(scale.left, scale.right, count)) {
      const at = scale.x(x);
      made.push(shape("line", { class: "axis", x1: at, x2: at, y1: floor, y2: floor + 4 }));
      // What would stick out is pulled in.
      const anchor = at > width - 40 ? "end" : "middle";
      made.push(shape("text", { x: at, y: floor + 17, "text-anchor": anchor }, words.writeX(x)));
    }
    made.push(shape("line", { class: "axis", x1: EDGE.left, x2: width - EDGE.right, y1: floor, y2: floor }));
    const middle = (EDGE.left + width - EDGE.right) / 2;
    made.push(shape("text", { x: middle, y: height - 5, "text-anchor": "middle" }, words.x));
    return made;
  }

  curve({ kind, points, level, dots }) {
    const { scale } = this;
    let path = "";
    points.forEach(([x, y], n) => {
      const [across, down] = [scale.x(x).toFixed(1), scale.y(y).toFixed(1)];
      if (n === 0) path += `M${across} ${down}`;
      else path += level ? `H${across}V${down}` : `L${across} ${down}`;
    });
    const made = [shape("path", { class: `curve ${kind}`, d: path })];
    if (dots || points.length === 1) {
      const dot = ([x, y]) => shape("circle", { class: kind, cx: scale.x(x), cy: scale.y(y), r: 3 });
      made.push(...points.slice(-60).map(dot));
    }
    return made;
  }

  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    this.look(this.scale.back(event.clientX - box.left));
  }

  key(event) {
    const points = this.drawn?.[0]?.points;
    if (!points || !this.scale) return;
    const here = this.at === null ? points.length - 1 : nearest(points, this.at);
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: points.length - 1, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.look(to === null ? null : points[Math.min(Math.max(to, 0), points.length - 1)][0]);
    this.spoken.textContent = this.readout.hidden ? "" : this.readout.innerText;
  }

  // Shows the values at `x`, or none.
  look(x) {
    this.at = x;
    this.readout.hidden = x === null || !this.scale;
    if (this.readout.hidden) return this.cursor?.setAttribute("visibility", "hidden");
    const { scale, words } = this;
    const [lead] = this.drawn;
    const at = lead.points[nearest(lead.points, Math.min(Math.max(x, scale.left), scale.right))][0];
    const said = this.drawn.flatMap((one) => {
      const found = one.level ? one.points.findLast((point) => point[0] <= at) : one.points[nearest(one.points, at)];
      if (!found) return [];
      const elsewhere = !one.level && found[0] !== at ? ` (${words.x} ${words.readX(found[0])})` : "";
      return [html("div", "", `${one.name}: ${words.readY(found[1])}${elsewhere}`)];
    });
    this.readout.replaceChildren(html("b", "", `${words.x} ${words.readX(at)}`), ...said);
    const place = scale.x(at);
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, place);
    this.cursor.setAttribute("visibility", "visible");
    const box = this.svg.getBoundingClientRect();
    const above = box.top - this.place.getBoundingClientRect().top;
    const wide = this.readout.offsetWidth;
    const left = place + 12 + wide > box.width ? Math.max(place - 12 - wide, 0) : place + 12;
    this.readout.style.transform = `translate(${left}px, ${above + EDGE.top}px)`;
  }
}
