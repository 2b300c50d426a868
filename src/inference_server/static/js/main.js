// Polls the server once a second while the page is visible, and hands each part of the answer to whom it concerns.

import { call } from "./api.js";
import { drawBatch } from "./batch.js";
import { LineChart } from "./chart.js";
import { $, count, duration, mark, percent, short, write } from "./dom.js";
import { wirePlayground } from "./playground.js";
import { HEALTH, everySecond } from "./poll.js";
import { drawPool } from "./pool.js";
import { drawRecent, wireSearch } from "./recent.js";
import { drawSimulator, wireSimulator } from "./simulator.js";

const SECONDS = 120;
const QUANTILES = ["p50", "p95", "p99"];

const charts = {
  tokens: new LineChart($("chart-tokens"), { names: ["tokens"], format: short, seconds: 59, label: "Output tokens a second", area: true }),
  ttft_ms: new LineChart($("chart-ttft"), { names: QUANTILES, format: duration, mark, seconds: SECONDS, label: "Time to first token" }),
  itl_ms: new LineChart($("chart-itl"), { names: QUANTILES, format: duration, mark, seconds: SECONDS, label: "Time between tokens" }),
};
const past = { ttft_ms: QUANTILES.map(() => []), itl_ms: QUANTILES.map(() => []) };

function drawTiles(scheduler, cache) {
  const tail = (times) => `p95 ${duration(times.p95)} · p99 ${duration(times.p99)}`;
  write($("tile-tokens"), short(scheduler.tokens_per_s));
  write($("tile-requests"), `${scheduler.requests_per_s.toFixed(1)} requests/s · ${scheduler.steps_per_s.toFixed(0)} steps/s`);
  write($("tile-ttft"), duration(scheduler.ttft_ms.p50));
  write($("tile-ttft-tail"), tail(scheduler.ttft_ms));
  write($("tile-itl"), duration(scheduler.itl_ms.p50));
  write($("tile-itl-tail"), tail(scheduler.itl_ms));
  write($("tile-hits"), percent(cache.hit_tokens + cache.miss_tokens ? cache.hit_rate : null));
  write($("tile-hit-tokens"), `${short(cache.hit_tokens)} of ${short(cache.hit_tokens + cache.miss_tokens)}`);
  write($("tile-queue"), count(scheduler.queue_depth));
  write($("tile-refused"), `${count(scheduler.rejected_total)} refused so far`);
}

function drawCharts(state) {
  charts.tokens.draw([state.history.tokens]);
  for (const name of ["ttft_ms", "itl_ms"]) {
    past[name].forEach((values, index) => {
      values.push(state.scheduler[name][QUANTILES[index]]);
      if (values.length > SECONDS) values.shift();
    });
    charts[name].draw(past[name]);
  }
}

async function poll() {
  const state = await call("/dashboard/state");
  write($("model"), state.model);
  drawTiles(state.scheduler, state.cache);
  drawBatch(state.requests, state.scheduler);
  drawPool(state.cache, state.scheduler);
  drawCharts(state);
  drawSimulator(state.simulator);
  drawRecent(state.ended);
  return [HEALTH[state.health] ?? state.health, state.health];
}

wireSimulator();
wirePlayground();
wireSearch();
everySecond(poll);
