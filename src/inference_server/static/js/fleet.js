// The page that the ingress of a fleet shows at /fleet: a row for each replica, asked for once a second while the page is visible.

import { call } from "./api.js";
import { $, count, el, follow, percent, short, write } from "./dom.js";
import { HEALTH, everySecond } from "./poll.js";

const sum = (replicas, name) => replicas.reduce((total, replica) => total + replica[name], 0);
const hits = (found) => (found.hit + found.miss ? found.hit / (found.hit + found.miss) : null);

function drawTiles(fleet) {
  const replicas = fleet.replicas;
  const tokens = sum(replicas, "tokens");
  const cache = { hit: sum(replicas, "hit_tokens"), miss: sum(replicas, "miss_tokens") };
  const busiest = Math.max(0, ...replicas.map((replica) => replica.tokens));
  write($("tile-tokens"), short(sum(replicas, "tokens_per_s")));
  write($("tile-flight"), `${short(tokens)} tokens in flight`);
  write($("tile-running"), count(sum(replicas, "running")));
  write($("tile-waiting"), `${count(sum(replicas, "waiting"))} waiting · ${count(fleet.refused)} refused by the fleet`);
  write($("tile-busiest"), tokens ? ((busiest * replicas.length) / tokens).toFixed(2) : "–");
  write($("tile-hits"), percent(hits(cache)));
  write($("tile-hit-tokens"), `${short(cache.hit)} of ${short(cache.hit + cache.miss)}`);
  write($("tile-broken"), count(fleet.broken));
  write($("tile-retries"), `${count(fleet.retries)} ran again elsewhere`);
}

function create(replica) {
  const track = el("span", { class: "track", role: "img" }, el("i"));
  return el("tr", {}, el("th", { scope: "row" }, replica.replica), ...Array.from({ length: 4 }, () => el("td")), el("td", {}, track), el("td"), el("td"));
}

function update(row, replica) {
  const [, state, running, waiting, tokens, memory, cached, rate] = row.children;
  write(state, HEALTH[replica.status] ?? replica.status);
  write(running, count(replica.running));
  write(waiting, count(replica.waiting));
  write(tokens, count(replica.tokens));
  memory.firstElementChild.setAttribute("aria-label", `${percent(replica.kv_pressure)} used`);
  memory.firstElementChild.firstElementChild.style.setProperty("width", `${100 * replica.kv_pressure}%`);
  write(cached, percent(hits({ hit: replica.hit_tokens, miss: replica.miss_tokens })));
  write(rate, short(replica.tokens_per_s));
}

everySecond(async () => {
  const fleet = await call("fleet/stats");
  const replicas = fleet.replicas.sort((one, other) => one.replica.localeCompare(other.replica));
  drawTiles(fleet);
  follow($("replicas"), replicas, (replica) => replica.replica, create, update);
  $("replicas-empty").hidden = replicas.length > 0;
  return [`replicas: ${replicas.length}`, replicas.length ? "ok" : "lost"];
});
