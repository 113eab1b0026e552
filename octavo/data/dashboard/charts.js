/* global uPlot */
// Charts of the series, by uPlot (vendor/).

import * as api from "./api.js";
import { parse, quantile, rate, total } from "./series.js";
import { count, make, percent, seconds, setText, theme } from "./tools.js";

const EVERY = 2000; // ms
const MOST = 300; // looks: ten minutes
const WINDOW = 15; // looks that a quantile is taken over: half a minute
const WHOLE = [1, 2, 5].flatMap((step) => [0, 1, 2, 3, 4, 5].map((power) => step * 10 ** power)).sort((a, b) => a - b);
const DASHES = { solid: [], dashed: [6, 3], dotted: [2, 3] };

const state = (name) => (_, now) => total(now.samples, "octavo:kv_blocks", { state: name }) / total(now.samples, "octavo:kv_blocks_total");
const gauge = (name) => (_, now) => total(now.samples, name);
const speed = (name, per = 1) => (before, now) => before && per * (rate(before, now, name) || 0);
const part = (name, q) => (_, now, long) => long && quantile(long, now, name, q);

function hits(_, now, long) {
  if (!long) return null;
  const asked = rate(long, now, "vllm:prefix_cache_queries_total");
  return asked > 0 ? rate(long, now, "vllm:prefix_cache_hits_total") / asked : null;
}

// Each line: name, colour, dash, how its value comes of the looks before, now and half a minute ago.
const CHARTS = [
  ["Tokens a second", count, ["prompt", "prompt", "dashed", speed("vllm:prompt_tokens_total")],
    ["generated", "answer", "solid", speed("vllm:generation_tokens_total")]],
  ["The pool", percent, ["active", "shared-3", "solid", state("active")], ["cached", "cached", "dashed", state("cached")],
    ["pinned", "pinned", "dotted", state("pinned")]],
  ["Requests", count, ["running", "shared-3", "solid", gauge("vllm:num_requests_running")],
    ["waiting", "mark", "dashed", gauge("vllm:num_requests_waiting")]],
  ["Prompt tokens found in the cache", percent, ["hits", "cached-line", "solid", hits]],
  ["Time to the first token", seconds, ["half", "prompt", "solid", part("vllm:time_to_first_token_seconds", 0.5)],
    ["99 %", "mark", "dashed", part("vllm:time_to_first_token_seconds", 0.99)]],
  ["Between two tokens", seconds, ["half", "answer", "solid", part("vllm:inter_token_latency_seconds", 0.5)],
    ["99 %", "mark", "dashed", part("vllm:inter_token_latency_seconds", 0.99)]],
  ["Preemptions and refusals a minute", count, ["preempted", "mark", "solid", speed("vllm:num_preemptions_total", 60)],
    ["refused", "pinned", "dashed", speed("octavo:requests_rejected_total", 60)]],
  ["First in line has waited", seconds, ["waited", "mark", "solid", gauge("octavo:queue_head_age_seconds")]],
];

export class Charts {
  constructor(root) {
    this.root = root;
    this.looks = [];
    this.times = [];
    this.charts = CHARTS.map(([title, form, ...lines]) => ({ title, form, lines, values: lines.map(() => []) }));
    this.build();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
  }

  async look() {
    const now = { time: performance.now() / 1000, samples: parse(await api.metrics()) };
    const before = this.looks.at(-1), long = this.looks.at(-WINDOW) ?? this.looks[0];
    this.looks = [...this.looks.slice(-WINDOW), now];
    await this.add((value) => value(before, now, long));
  }

  // A look that failed: a gap, where nothing is known, and no line over it.
  async miss() {
    await this.add(() => null);
  }

  async add(valueOf) {
    this.times = [...this.times.slice(1 - MOST), Date.now() / 1000];
    for (const chart of this.charts) {
      chart.values = chart.lines.map(([, , , value], i) => {
        const found = valueOf(value);
        return [...chart.values[i].slice(1 - MOST), Number.isFinite(found) ? found : null];
      });
    }
    for (const chart of this.charts) {
      await new Promise(requestAnimationFrame); // one chart a frame
      this.draw(chart);
    }
  }

  // For ever, every two seconds, while isWatched() says so.
  async run(isWatched) {
    for (;;) {
      if (isWatched()) await this.look().catch(() => this.miss());
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  draw(chart) {
    chart.plot.setData([this.times, ...chart.values]);
    const told = chart.values.map((values, i) => {
      const last = values.at(-1);
      const text = last === null || last === undefined ? "–" : chart.form(last);
      setText(chart.told[i], `${chart.lines[i][0]} ${text}`);
      return `${chart.lines[i][0]} ${text}`;
    });
    chart.figure.setAttribute("aria-label", `${chart.title}: ${told.join(", ")}`);
  }

  build() {
    const colours = theme();
    this.root.replaceChildren();
    for (const chart of this.charts) {
      chart.told = chart.lines.map(() => make("span"));
      const keys = chart.lines.map(([, colour, dash], i) => {
        const key = make("span", { class: `key ${dash}` });
        key.style.borderTopColor = colours[colour];
        return make("span", {}, key, chart.told[i]);
      });
      const holder = make("div");
      chart.figure = make("figure", { role: "img", "aria-label": chart.title },
        make("figcaption", {}, chart.title), make("div", { class: "values" }, ...keys), holder);
      this.root.append(chart.figure);
      chart.plot = new uPlot(this.options(chart, colours, holder.clientWidth), [this.times, ...chart.values], holder);
    }
  }

  options(chart, colours, width) {
    const axis = { stroke: colours.soft, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    return {
      width: Math.max(120, width),
      height: 120,
      padding: [6, 4, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 0) > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, size: 22, space: 70, values: (_, at) => at.map((t) => new Date(1000 * t).toLocaleTimeString("en-GB")) },
        { ...axis, size: 52, space: 32, ...(chart.form === count && { incrs: WHOLE }), values: (_, at) => at.map((value) => (value === null ? "" : chart.form(value))) },
      ],
      series: [{}, ...chart.lines.map(([name, colour, dash]) => (
        { label: name, stroke: colours[colour], dash: DASHES[dash], width: 1.8, points: { show: false }, spanGaps: false }))],
    };
  }

  resize() {
    for (const chart of this.charts) {
      const width = Math.max(120, chart.figure.clientWidth);
      if (width !== chart.plot.width) chart.plot.setSize({ width, height: 120 });
    }
  }

  recolour() {
    for (const chart of this.charts) chart.plot.destroy();
    this.build();
    for (const chart of this.charts) this.draw(chart);
  }
}
