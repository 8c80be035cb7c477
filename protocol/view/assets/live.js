// Keeps a page up to date: at each event the page is fetched again, and the parts of it that differ are exchanged. Focus and
// scroll position stay. Without this script the page shows what was true when it was loaded.
(() => {
  const path = document.currentScript.dataset.events;
  const connection = document.getElementById("connection");
  let events = null, busy = false, again = false;

  const exchange = (fresh) => {
    const now = document.getElementById("main");
    const next = fresh.getElementById("main");
    if (!now || !next) return;
    const focused = document.activeElement;
    const focus = now.contains(focused) && focused.getAttribute("href");
    for (let index = 0; index < next.children.length; index += 1) {
      const [before, after] = [now.children[index], next.children[index]];
      if (!before) now.append(after.cloneNode(true));
      else if (window.musterCharts?.refresh(before, after)) continue;
      else if (before.outerHTML !== after.outerHTML) before.replaceWith(after.cloneNode(true));
    }
    while (now.children.length > next.children.length) now.lastElementChild.remove();
    window.musterCharts?.attach();
    document.title = fresh.title;
    if (focus && !now.contains(document.activeElement)) {
      [...now.querySelectorAll("a")].find((link) => link.getAttribute("href") === focus)?.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    again = false;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch { /* The stream of events says when the program is gone. */ }
    busy = false;
    if (again) setTimeout(refresh, 500);
  };

  // A page that nobody sees takes no connection: a browser has few of them for one address.
  const listen = () => {
    if (document.hidden) { events?.close(); events = null; return; }
    if (events) return;
    events = new EventSource(path);
    events.onmessage = refresh;
    events.onopen = () => { connection.hidden = true; };
    events.onerror = () => { connection.hidden = false; };
  };

  document.addEventListener("visibilitychange", listen);
  listen();
})();
