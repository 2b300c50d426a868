// The API key of this tab, kept in its session storage: no other tab has it, and closing the tab forgets it.

import { $, write } from "./dom.js";

const NAME = "api-key";
let asking = null;

/** fetch with the tab's key. Where the server wants another one, the user is asked for it and the request is sent again. */
export async function send(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(NAME);
    const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) return response;
    if (key === sessionStorage.getItem(NAME)) await ask(key);
  }
}

/** Resolves once the dialog has been closed, for all who wait for it. */
function ask(refused) {
  asking ??= new Promise((resolve) => {
    write($("key-error"), refused ? "The server refused this key." : "");
    $("key").addEventListener(
      "close",
      () => {
        const key = $("key-text").value;
        if (key) sessionStorage.setItem(NAME, key);
        $("key-text").value = "";
        asking = null;
        resolve();
      },
      { once: true },
    );
    $("key").showModal();
  });
  return asking;
}
