// The page: one look at the pool after another, handed to the parts that show it.

import * as api from "./api.js";
import { ACTIVE, CACHED, FREE, LOOKS, PINNED, decode, lookOf, paint } from "./blocks.js";
import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { BlockDetail } from "./detail.js";
import { BlockMap } from "./map.js";
import { Playground } from "./playground.js";
import { PARTS, Queue } from "./queue.js";
import { Timeline } from "./timeline.js";
import { count, fitCanvas, make, onThemeChange, percent, setText, theme } from "./tools.js";

const find = (id) => document.getElementById(id);
const frame = () => new Promise(requestAnimationFrame);

let after = 0, paused = false, interval = 250, codes = new Uint8Array(0), selected = null, before = null;

const map = new BlockMap(find("map"), (block) => (block === null ? detail.clear() : detail.show(block)));
const detail = new BlockDetail(find("block"), choose);
const queue = new Queue(find("queue"), choose);
const timeline = new Timeline(find("timeline"), find("step"));
const decisions = new Decisions(find("log"));
const playground = new Playground(find("playground"), (blocks) => { if (!selected) map.mark(blocks); });
const charts = new Charts(find("charts"));

function choose(id) {
  selected = id;
  queue.select(id);
  if (!id) map.mark(playground.blocks);
}

function setState(state, text) {
  const element = find("state");
  if (element.dataset.state !== state) element.dataset.state = state;
  setText(element, text);
}

const tiles = new Map();
function tile(name, value, unit = "") {
  if (!tiles.has(name)) {
    const number = make("span"), small = make("small");
    tiles.set(name, [number, small]);
    find("tiles").append(make("div", {}, make("dt", {}, name), make("dd", {}, number, " ", small)));
  }
  const [number, small] = tiles.get(name);
  setText(number, value);
  setText(small, unit);
}

const legend = LOOKS.map((look) => {
  const canvas = make("canvas", { "aria-hidden": "true" }), number = make("span");
  find("legend").append(make("li", { title: look.say }, canvas, look.name, number));
  return { canvas, number };
});

function drawLegends() {
  const colours = theme();
  legend.forEach(({ canvas }, look) => paint(fitCanvas(canvas, 18, 18), look, 0, 0, 18, colours));
}

function barLegend(root, parts) {
  root.append(...parts.map(([kind, text]) => make("li", {}, make("span", { class: `swatch part-${kind}` }), text)));
}
const WORDS = { cached: "prompt, found in the cache", prompt: "prompt, computed", rest: "prompt, still to compute", answer: "generated" };
barLegend(find("bars-legend"), PARTS.map((part) => [part, WORDS[part]]));
barLegend(find("steps-legend"), [["prompt", "tokens of prompts (prefill)"], ["answer", "tokens of answers (decode)"]]);

function countLooks() {
  const counts = new Array(LOOKS.length).fill(0);
  for (let i = 0; i < codes.length; i++) counts[lookOf(codes[i])]++;
  return counts;
}

function showTiles(look, counts) {
  const active = counts.slice(ACTIVE).reduce((sum, each) => sum + each, 0);
  const shared = counts.slice(ACTIVE + 1).reduce((sum, each) => sum + each, 0);
  const inUse = active + counts[PINNED];
  tile("Pool in use", percent(inUse / codes.length), `${count(inUse)} of ${count(codes.length)}`);
  tile("Free or evictable", count(counts[FREE] + counts[CACHED]), "blocks");
  tile("Shared", count(shared), `of ${count(active)} active`);
  tile("Running", count(look.running), `of ${count(look.max_num_seqs)}`);
  tile("Waiting", count(look.waiting));
  const steps = look.steps.length, span = before ? look.time - before.time : 0;
  const tokens = look.steps.reduce((sum, step) => [sum[0] + step[3], sum[1] + step[4]], [0, 0]);
  if (span > 0 || !before) {
    tile("Prompt", span ? count(tokens[0] / span) : "–", "tokens/s");
    tile("Answers", span ? count(tokens[1] / span) : "–", "tokens/s");
    tile("Steps", span ? count(steps / span) : "–", "a second");
  }
  legend.forEach(({ number }, i) => setText(number, count(counts[i])));
  setText(find("pool-sum"), `${count(codes.length)} blocks: ${count(active)} active, ${count(counts[PINNED])} pinned, `
    + `${count(counts[CACHED])} cached, ${count(counts[FREE])} free`);
}

// One part a frame, so that no frame is late however much there is to show.
async function show(look) {
  const renewed = look.look !== before?.look;
  codes = decode(look.blocks);
  map.show(codes);
  detail.note(codes, look.time);
  await frame();
  queue.show(look.requests);
  await frame();
  if (renewed) {
    showTiles(look, countLooks());
    timeline.add(look.steps, look.token_budget);
    await frame();
    decisions.add(look.events);
  }
  setText(find("model"), look.model);
  setText(find("block-size"), String(look.block_size));
  after = look.look;
  before = look;
}

async function markSelected() {
  if (!selected) return;
  const { choices } = await api.choices(selected);
  map.mark([...new Set(choices.flatMap((choice) => choice.tables.flat()).filter((block) => block >= 0))]);
}

async function turn() {
  const look = await api.pool(after);
  interval = 1000 * look.interval;
  await show(look);
  await markSelected();
  await detail.renew();
  await playground.look(codes, look.block_size);
  if (!paused) setState("live", "live");
}

async function run() {
  for (;;) {
    if (!paused && !document.hidden) {
      try {
        await turn();
      } catch (error) {
        if (error.status === 401 || error.status === 403) return location.reload(); // the login is over
        interval = 1000;
        if (!paused) setState("error", error.status ? error.message : "the server does not answer");
      }
    }
    await new Promise((resolve) => setTimeout(resolve, interval));
  }
}

find("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  setText(event.target, paused ? "Go on" : "Pause");
  if (paused) setState("waiting", "paused");
});
onThemeChange(() => {
  drawLegends();
  map.recolour();
  charts.recolour();
  timeline.draw();
});
drawLegends();
charts.run(() => !paused && !document.hidden);
run();
