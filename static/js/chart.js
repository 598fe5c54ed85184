// A chart of a kind of chart-kinds.js, drawn by uPlot. Colours come from the style sheet and follow
// the theme. Screen readers get a sentence; the figures are also in a table.

import { kinds } from "./chart-kinds.js";
import { clock, minute } from "./format.js";
import { follow } from "./live-samples.js";
import { t } from "./text.js";

const HEIGHT = 180;

class Chart extends HTMLElement {
  async connectedCallback() {
    this.kind = kinds[this.dataset.kind];
    this.reading = this.parentElement.querySelector("[data-reading]");
    this.setAttribute("role", "img");
    this.setAttribute("aria-label", this.parentElement.querySelector("h2").textContent);
    const { default: Plot } = await import(this.dataset.plot);
    if (!this.isConnected) return;
    this.Plot = Plot;
    this.stop = follow((samples) => this.show(samples));
    this.sizes = new ResizeObserver(() => {
      this.plot?.setSize({ width: this.clientWidth, height: HEIGHT });
    });
    this.sizes.observe(this);
    this.themes = new MutationObserver(() => this.draw());
    this.themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.night = matchMedia("(prefers-color-scheme: dark)");
    this.night.addEventListener("change", this.draw);
  }

  disconnectedCallback() {
    this.stop?.();
    this.sizes?.disconnect();
    this.themes?.disconnect();
    this.night?.removeEventListener("change", this.draw);
    this.plot?.destroy();
  }

  show(samples) {
    this.samples = samples;
    this.data = this.kind.columns(samples);
    this.setAttribute("aria-label", this.kind.describe(this.data, samples));
    const empty = this.kind.empty(this.data);
    if (empty) this.dataset.empty = empty;
    else delete this.dataset.empty;
    if (!this.plot) this.draw();
    else this.plot.setData(this.data);
  }

  draw = () => {
    if (!this.data) return;
    this.plot?.destroy();
    this.plot = new this.Plot(this.options(), this.data, this);
  };

  options() {
    const { axes, series, points = false } = this.kind;
    const scale = (number) => `y${number}`;
    return {
      width: this.clientWidth,
      height: HEIGHT,
      padding: [12, axes.length > 1 ? 0 : 28, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)] },
      scales: {
        x: { time: true, range: () => [this.samples.begin, this.samples.now] },
        ...Object.fromEntries(axes.map((axis, number) => [scale(number), { range: bounds(axis) }])),
      },
      axes: [
        this.axis({ space: 72, size: 28, values: times }),
        ...axes.map((axis, number) => this.measure(axis, scale(number))),
      ],
      series: [
        {},
        ...series.map(({ colour, fill, label, axis = 0 }) => ({
          label: t(label),
          scale: scale(axis),
          stroke: this.colour(colour),
          fill: fill && this.colour(fill),
          width: 1.75,
          points: { show: points, size: 6, fill: this.colour(colour) },
        })),
      ],
    };
  }

  measure({ tick, right }, scale) {
    const side = right ? 1 : 3;
    const values = (plot, ticks) => ticks.map(tick);
    const grid = right ? { show: false } : this.lines();
    return { ...this.axis({ space: 36 }), scale, side, size: 48, values, grid };
  }

  axis(more) {
    return {
      stroke: this.colour("--ink-quiet"),
      font: `12px ${getComputedStyle(this).fontFamily}`,
      grid: this.lines(),
      ticks: { show: false },
      ...more,
    };
  }

  lines() {
    return { stroke: this.colour("--line"), width: 1 };
  }

  // The colour of a style sheet's token in the current theme.
  colour(token) {
    if (!this.probe) {
      this.probe = Object.assign(document.createElement("span"), { hidden: true });
      this.append(this.probe);
    }
    this.probe.style.color = `var(${token})`;
    return getComputedStyle(this.probe).color;
  }

  // Show the figures at the pointer.
  read(index) {
    if (!this.reading) return;
    const figure = ({ axis = 0 }, number) => {
      const value = this.data[number + 1][index];
      return value == null ? "–" : this.kind.axes[axis].format(value);
    };
    const known = index !== null && index !== undefined;
    const parts = known ? [clock(this.data[0][index]), ...this.kind.series.map(figure)] : [];
    this.reading.textContent = parts.join(" · ");
  }
}

// Labels of the time axis, with seconds only for ticks closer than a minute.
function times(plot, ticks, axis, space, interval) {
  return ticks.map(interval < 60 ? clock : minute);
}

// The range of an axis from zero to a margin above the data, at least `least` and at most `most`.
function bounds({ least, most = Infinity }) {
  return (plot, low, high) => [0, Math.min(most, Math.max(least, 1.1 * (high ?? 0)))];
}

customElements.define("omlx-chart", Chart);
