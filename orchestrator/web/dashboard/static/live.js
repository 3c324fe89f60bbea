// Keeps a page live. The page says everything without this file.
(() => {
  const body = document.body, live = document.getElementById("live"), main = document.getElementById("main");
  const waiting = new Map(); // id -> its newest HTML; "" is the whole content: a burst costs one repaint a second
  let heard = Date.now(), trouble = "", paused = false, source, title;

  const span = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    const two = (n) => String(n).padStart(2, "0");
    if (s >= 86400) return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
    if (s >= 3600) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
    return s >= 60 ? `${Math.floor(s / 60)}m${two(s % 60)}s` : `${s}s`;
  };

  // Make `old` like `fresh`, and touch only what differs: focus, selection and opened details survive.
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && !(name === "open" || name === "aria-selected")) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value && !(name === "open")) old.setAttribute(name, value);
    if (old === document.activeElement && old.matches("input, select, textarea")) return;
    const known = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      const have = want.id && known.get(want.id) ? known.get(want.id) : at && !at.id && same(at, want) ? at : null;
      if (!have) { old.insertBefore(want, at); continue; }
      if (have === at) at = at.nextSibling; else old.insertBefore(have, at);
      morph(have, want);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };

  const element = (html, within) => {
    const holder = document.createElement("template");
    holder.innerHTML = within ? `<${within}>${html}</${within}>` : html;
    return holder.content.firstElementChild;
  };
  const paint = () => {
    if (paused || !waiting.size) return;
    const ends = [...main.querySelectorAll("[data-end]")].filter((box) => box.scrollHeight - box.scrollTop - box.clientHeight < 30);
    for (const [id, html] of waiting) {
      if (id === "") { morph(main, element(html, "main")); main.id = "main"; main.tabIndex = -1; continue; }
      const old = document.getElementById(id), fresh = element(html);
      if (old && fresh) { morph(old, fresh); old.classList.add("fresh"); setTimeout(() => old.classList.remove("fresh"), 1200); }
    }
    waiting.clear();
    for (const box of ends) box.scrollTop = box.scrollHeight; // who looks at the end of a log follows it
    if (title) document.title = title;
    local(main);
  };
  const hear = (at) => { heard = at ? Math.min(Date.now(), Date.parse(at) || Date.now()) : Date.now(); trouble = ""; };
  const connect = () => {
    source = new EventSource(`${body.dataset.events}${body.dataset.events.includes("?") ? "&" : "?"}digest=${body.dataset.digest}`);
    source.addEventListener("main", (event) => {
      const told = JSON.parse(event.data);
      waiting.clear(); waiting.set("", told.html); title = `${told.title} · ${document.querySelector(".name").textContent}`; hear();
    });
    source.addEventListener("parts", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data).parts)) waiting.set(id, html);
      hear();
    });
    source.addEventListener("same", () => hear());
    source.addEventListener("trouble", (event) => { trouble = JSON.parse(event.data).why; });
    source.addEventListener("signed_out", () => { source.close(); location.reload(); });
  };
  const tell = () => {
    const age = (Date.now() - heard) / 1000, old = age > 5 || trouble;
    live.className = paused ? "live s s-idle" : old ? "live s s-warn" : "live s s-active";
    const text = paused ? "paused" : trouble ? `${span(age)} old: ${trouble}` : old ? `${span(age)} old, connecting again` : "live";
    if (live.textContent !== text) live.textContent = text;
    body.classList.toggle("stale", Boolean(old) && !paused);
  };
  const ages = () => {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const s = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = s >= 0 ? span(s)+ time.dataset.ago : `in ${span(-s)}`;
      if (time.textContent !== text) time.textContent = text;
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
    if (paused) source.close(); else { connect(); hear(); }
    tell();
  };
  if (body.dataset.events) {
    connect();
    setInterval(() => { paint(); tell(); if (!paused) ages(); }, 1000);
    const button = document.getElementById("pause");
    button.hidden = false;
    button.addEventListener("click", pause);
    local(document);
    for (const box of main.querySelectorAll("[data-end]")) box.scrollTop = box.scrollHeight;
    tell();
  }

  // A link from another site comes without the cookie, which is for this site alone: ask once more from here.
  if (document.querySelector("form[data-again]") && document.referrer && new URL(document.referrer).host !== location.host && !sessionStorage.asked) {
    sessionStorage.asked = "1";
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
    if (event.key === "/") { const box = document.querySelector("[type=search]"); if (box) { event.preventDefault(); box.focus(); } }
    else if (event.key === "j") to(at + 1);
    else if (event.key === "k") to(at - 1);
    else if (event.key === "p" && body.dataset.events) pause();
    else if (event.key === "?") document.getElementById("help")?.showModal();
  });
})();
