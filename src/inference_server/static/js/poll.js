// Asks for something once a second while the page is visible, and says in its head how that went.

import { $, write } from "./dom.js";

const INTERVAL_MS = 1000;
export const HEALTH = { ok: "serving", idle: "idle", loading: "loading the model", draining: "shutting down", stalled: "stalled", dead: "dead" };

/** `poll` draws what it got and resolves to a text for the head of the page and the kind of its dot. */
export async function everySecond(poll) {
  for (;;) {
    if (document.visibilityState === "visible") {
      const [text, kind] = await poll().catch(() => ["no connection, trying again", "lost"]);
      write($("health"), text);
      $("health-dot").className = `dot ${kind}`;
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}
