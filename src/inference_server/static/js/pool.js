// KV memory as a map of blocks, and who has had how much service.

import { $, bytes, count, el, follow, percent, short, write } from "./dom.js";

const CELLS = 240;

/** The kinds of the cells, in proportion; whatever is there gets at least one. Pinned blocks are used and cached. */
function cells(cache) {
  const numbers = { pinned: cache.pinned_blocks, used: cache.used_blocks - cache.pinned_blocks, kept: cache.cached_blocks };
  const share = (blocks) => (blocks ? Math.max(1, Math.round((CELLS * blocks) / cache.total_blocks)) : 0);
  return Object.entries(numbers).flatMap(([kind, blocks]) => Array(share(blocks)).fill(kind));
}

export function drawPool(cache, scheduler) {
  const map = $("pool");
  if (!map.children.length) map.append(...Array.from({ length: CELLS }, () => el("i")));
  const kinds = cache.total_blocks ? cells(cache) : [];
  for (let i = 0; i < CELLS; i++) {
    if (map.children[i].className !== (kinds[i] ?? "")) map.children[i].className = kinds[i] ?? "";
  }
  map.setAttribute("aria-label", `KV blocks: ${cache.used_blocks} used, ${cache.pinned_blocks} of them cached too, ${cache.cached_blocks} only cached, ${cache.free_blocks} free`);
  write($("pool-used"), `${count(cache.used_blocks)} · ${percent(cache.utilization)}`);
  write($("pool-pinned"), count(cache.pinned_blocks));
  write($("pool-cached"), count(cache.cached_blocks));
  write($("pool-free"), count(cache.free_blocks));
  write($("pool-size"), cache.total_blocks ? `${count(cache.total_blocks)} blocks, ${bytes(cache.total_bytes)}` : "no model yet");
  write($("pool-events"), `${count(cache.evicted_blocks)} blocks evicted · ${count(scheduler.preemptions_total)} preemptions`);
  drawFairness(scheduler.fairness);
}

function drawFairness(keys) {
  const shown = keys.slice(0, 6);
  const most = Math.max(1, ...shown.map((key) => key.served));
  follow($("fairness"), shown, (key) => key.key, createBar, (item, key) => updateBar(item, key, most));
  $("fairness-empty").hidden = shown.length > 0;
}

function createBar() {
  return el("li", {}, el("span", { class: "who" }), el("span", { class: "track", "aria-hidden": "true" }, el("i")), el("span", { class: "value" }));
}

function updateBar(item, key, most) {
  const [who, track, value] = item.children;
  write(who, key.key.replace(/^(session|address):/, ""));
  who.title = key.key;
  track.firstElementChild.style.setProperty("width", `${(100 * key.served) / most}%`);
  write(value, short(key.served));
  value.title = `${key.served} weighted tokens, ${key.num_open} open, ${key.num_waiting} waiting`;
}
