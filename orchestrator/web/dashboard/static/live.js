// Keeps a page live. The page says everything without this file.
(() => {
  const body = document.body, live = document.getElementById("live"), main = document.getElementById("main");
  const waiting = new Map(); // id -> its newest HTML; "" is the whole content: a burst costs one repaint a second
  let heard = Date.now(), spoke = heard, trouble = "", paused = false, gone = false, said = "live", ahead = 0, source, again, title;

  const span = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    const two = (n) => String(n).padStart(2, "0");
    if (s >= 86400) return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
    if (s >= 3600) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
    return s >= 60 ? `${Math.floor(s / 60)}m${two(s % 60)}s` : `${s}s`;
  };

  // Make `old` like `fresh`, and touch only what differs: focus, selection and opened details survive.
  const kept = (name) => name === "open" || name === "aria-selected"; // the viewer's own
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value && !kept(name)) old.setAttribute(name, value);
    if (old === document.activeElement && old.matches("input, select, textarea")) return;
    const known = new Map(), spare = new Map(); // the old elements: by id, and the others by name, in their order
    const id = (one) => one.getAttribute("id"); // a form's property `id` may be a field of that name
    for (const one of old.children)
      if (id(one)) known.set(id(one), one); else spare.set(one.nodeName, [...spare.get(one.nodeName) || [], one]);
    const wants = [...fresh.childNodes], element = (one) => one.nodeType === 1;
    const haves = wants.map((want) => {
      const have = element(want) && (id(want) ? known.get(id(want)) : spare.get(want.nodeName)?.shift());
      return have && have.nodeName === want.nodeName ? have : null;
    });
    for (const one of [...old.children]) if (!haves.includes(one)) one.remove();
    let at = old.firstChild;
    const next = () => { const now = at; at = at.nextSibling; return now; };
    wants.forEach((want, index) => {
      const have = haves[index] || (at && !element(at) && at.nodeType === want.nodeType ? at : null);
      if (!have) { old.insertBefore(want, at); return; }
      while (at && at !== have && !element(at)) next().remove(); // an element that moves would lose the focus
      if (have === at) next(); else old.insertBefore(have, at);
      morph(have, want);
    });
    while (at) next().remove();
  };

  const inert = (html, around) => { // in a template nothing loads or runs
    const holder = document.createElement("template");
    if (!around) { holder.innerHTML = html; return holder.content.firstElementChild; }
    holder.content.append(around.cloneNode(false));
    holder.content.firstElementChild.innerHTML = html;
    return holder.content.firstElementChild;
  };
  const paint = () => {
    if (paused || !waiting.size) return;
    const ends = [...main.querySelectorAll("[data-end]")].filter((box) => box.scrollHeight - box.scrollTop - box.clientHeight < 30);
    const focused = document.activeElement;
    for (const [id, html] of waiting) {
      if (id === "") { morph(main, inert(html, main)); continue; }
      const old = document.getElementById(id), fresh = inert(html);
      if (old && fresh) { morph(old, fresh); old.classList.add("fresh"); setTimeout(() => old.classList.remove("fresh"), 1200); }
    }
    waiting.clear();
    for (const box of ends) box.scrollTop = box.scrollHeight; // who looks at the end of a log follows it
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // it moved
    if (title) document.title = title;
    local(main);
  };
  const hear = (at) => { // `at` is the moment of the figures, by the server's clock
    heard = Date.now(); trouble = "";
    if (!Date.parse(at)) return;
    ahead = heard - Date.parse(at);
    const figures = document.querySelector("#figures time");
    figures.dateTime = at; figures.textContent = `${at.slice(11, 19)} UTC`;
    local(figures.parentNode);
  };
  const connect = () => {
    clearTimeout(again); source?.close(); spoke = Date.now();
    const mark = body.dataset.events.includes("?") ? "&" : "?";
    source = new EventSource(`${body.dataset.events}${mark}digest=${body.dataset.digest}`);
    const on = (name, act) => source.addEventListener(name, (event) => {
      spoke = Date.now();
      if (event.lastEventId) body.dataset.digest = event.lastEventId; // where a new stream goes on
      act(event.data);
    });
    on("main", (data) => {
      const told = JSON.parse(data);
      waiting.clear(); waiting.set("", told.html); for (const [id, html] of Object.entries(told.around)) waiting.set(id, html); title = `${told.title} · ${document.querySelector(".name").textContent}`; hear(told.at);
    });
    on("parts", (data) => {
      const told = JSON.parse(data);
      for (const [id, html] of Object.entries(told.parts)) waiting.set(id, html);
      hear(told.at);
    });
    on("same", hear);
    on("trouble", (data) => { trouble = JSON.parse(data).why; });
    on("signed_out", () => { source.close(); location.reload(); });
    source.addEventListener("error", async () => { // after an answer that is no stream the browser gives up
      if (source.readyState !== EventSource.CLOSED || paused) return;
      clearTimeout(again);
      const asked = source, page = await fetch(location.href, { method: "HEAD" }).catch(() => null);
      if (asked !== source || paused) return;
      gone = page?.status === 404;
      if (!gone) again = setTimeout(connect, 2000 + 3000 * Math.random());
    });
  };
  const tell = () => {
    const age = (Date.now() - heard) / 1000, old = age > 5 || trouble || gone;
    live.className = paused ? "live s s-idle" : old ? "live s s-warn" : "live s s-active";
    const why = gone ? "this is gone" : trouble || "connecting again";
    const text = paused ? "paused" : old ? `${span(age)} old: ${why}` : "live";
    if (live.textContent !== text) live.textContent = text;
    const news = paused ? "paused" : old ? `old: ${why}` : "live"; // read aloud once, without the age
    if (news !== said) document.getElementById("said").textContent = said = news;
    body.classList.toggle("stale", Boolean(old) && !paused);
  };
  const ages = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const age = (Date.now() - ahead - Date.parse(time.dateTime)) / 1000;
      const text = age >= 0 ? `${span(age)}${time.dataset.ago}` : `in ${span(-age)}`;
      if (time.textContent !== text) (time.firstChild || time).nodeValue = text; // the same node: a selection survives
    }
  };
  const local = (within) => { // moments in the viewer's zone
    for (const time of within.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      time.title = `${at.toLocaleString()} (${time.dateTime.replace("T", " ").replace("+00:00", " UTC")})`;
    }
  };
  const pause = () => {
    paused = !paused;
    document.getElementById("pause").textContent = paused ? "Go on" : "Pause";
    if (paused) rest(); else connect(); // what is shown stays old until something is heard
    tell();
  };
  const rest = () => { source?.close(); clearTimeout(again); };
  if (body.dataset.events) {
    // A page that nobody sees lets its connection go: a browser has six of them for all pages of a site.
    if (!document.hidden) connect();
    document.addEventListener("visibilitychange", () => {
      if (paused || gone) return;
      if (document.hidden) rest(); else { tell(); connect(); }
    });
    setInterval(() => {
      if (document.hidden) return;
      paint(); tell();
      if (paused) return;
      ages();
      if (!gone && source?.readyState === EventSource.OPEN && Date.now() - spoke > 20_000) connect(); // nothing comes through it
    }, 1000);
    const button = document.getElementById("pause");
    button.hidden = false;
    button.addEventListener("click", pause);
    delete sessionStorage.asked;
    local(document);
    for (const box of main.querySelectorAll("[data-end]")) box.scrollTop = box.scrollHeight;
    tell();
  }

  // A link from another site comes without the cookie, which is for this site alone: ask once more from here.
  if (document.querySelector("form[data-again]") && !location.pathname.startsWith("/login") && Date.now() - (sessionStorage.asked || 0) > 10_000) {
    sessionStorage.asked = Date.now();
    location.replace(location.href);
  }
  document.querySelector("form[data-now]")?.submit();

  const copy = (text) => {
    const done = () => { const note = document.createElement("span"); note.className = "copied"; note.role = "status"; note.textContent = "copied"; body.append(note); setTimeout(() => note.remove(), 1200); };
    if (navigator.clipboard) { navigator.clipboard.writeText(text).then(done); return; }
    const area = document.createElement("textarea"); // plain HTTP has no clipboard
    area.value = text; area.className = "off"; body.append(area); area.select(); document.execCommand("copy"); area.remove(); done();
  };
  document.addEventListener("click", (event) => {
    const from = event.target.closest("[data-copy]");
    if (from && !getSelection().toString()) copy(from.dataset.copy);
  });

  let went = false;
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey) return;
    const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));
    const at = rows.findIndex((row) => row.getAttribute("aria-selected"));
    const to = (index) => {
      rows[at]?.removeAttribute("aria-selected");
      const row = rows[Math.min(Math.max(index, 0), rows.length - 1)];
      row?.setAttribute("aria-selected", "true");
      row?.querySelector("a").focus();
    };
    if (went && /^[1-9]$/.test(event.key)) document.querySelectorAll("nav a")[event.key - 1]?.click();
    went = event.key === "g";
    if (event.key === "Enter" && event.target.matches("[data-copy]")) copy(event.target.dataset.copy);
    else if (event.key === "/") { const box = document.querySelector("[type=search]"); if (box) { event.preventDefault(); box.focus(); } }
    else if (event.key === "j") to(at + 1);
    else if (event.key === "k") to(at - 1);
    else if (event.key === "p" && body.dataset.events) pause();
    else if (event.key === "?") document.querySelector("#help:not([open])")?.showModal();
  });
})();
