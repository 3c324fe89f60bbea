"use strict";
// The page of the web app. Text from others (file names, tasks) is only ever set as textContent.

const MAX_PICTURES = 8, MAX_PICTURE_BYTES = 12 * 2 ** 20, MAX_UPLOAD_BYTES = 60 * 2 ** 20;
const MAX_TEXT = 300; // characters of a text that a pod wrote
const $ = (id) => document.getElementById(id);
let chosen = [];

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function drop(picture) {
  URL.revokeObjectURL(picture.url);
  chosen = chosen.filter((one) => one !== picture);
  showChosen();
}

function showChosen() {
  $("chosen").replaceChildren(...chosen.map((picture, index) => {
    const item = element("li"), image = new Image(), remove = element("button", "✕");
    image.src = picture.url;
    image.alt = "";
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove picture ${index + 1}`);
    remove.onclick = () => drop(picture);
    image.onerror = () => { // each attempt of a task that cannot read it would cost GPU time
      problem(`${picture.file.name} is not a picture that can be read.`);
      drop(picture);
    };
    item.append(image, element("span", picture.file.name), remove);
    return item;
  }));
  $("make").disabled = chosen.length < 2;
  $("make").textContent = chosen.length === 1 ? "Choose one more picture" : "Make the video";
}

function choose(files) {
  problem("");
  let bytes = chosen.reduce((sum, { file }) => sum + file.size, 0);
  for (const file of files) {
    if (file.size > MAX_PICTURE_BYTES || bytes + file.size > MAX_UPLOAD_BYTES) {
      problem(`${file.name} is too large: at most 12 MB each, and 60 MB together.`);
      continue;
    }
    bytes += file.size;
    if (chosen.length === MAX_PICTURES) {
      problem(`At most ${MAX_PICTURES} pictures: the others were left out.`);
      break;
    }
    chosen.push({ file, url: URL.createObjectURL(file) });
  }
  showChosen();
}

async function submit(event) {
  event.preventDefault();
  const form = new FormData();
  for (const { file } of chosen) form.append("pictures", file);
  problem("");
  $("make").disabled = true;
  $("make").textContent = "Uploading …";
  try {
    const answer = await fetch("/videos", { method: "POST", body: form });
    if (!answer.ok) throw new Error(await answer.text());
    location.search = `?video=${(await answer.json()).id}`;
  } catch (error) {
    problem(error instanceof TypeError ? "The upload failed. Please try again." : error.message);
    showChosen();
  }
}

function fraction(part) { // progress is JSON that a pod wrote
  const known = part.progress?.fraction;
  return part.status === "Complete" ? 1 : part.status === "In Progress" && known >= 0 && known <= 1 ? Number(known) : 0;
}

function words(part) {
  const text = (value) => (typeof value === "string" && value ? value.slice(0, MAX_TEXT) : "");
  if (part.status === "Complete") return "done";
  if (part.status === "Failed") return part.error ? `failed: ${text(part.error)}` : "failed";
  if (part.status === "Queued") return part.attempt ? `waits for attempt ${part.attempt + 1}` : "waits";
  if (part.status !== "In Progress") return part.status ? "cancelled" : "deleted";
  const said = text(part.progress?.message), again = part.attempt > 1 ? `, attempt ${part.attempt}` : "";
  return `${Math.round(100 * fraction(part))} %${said ? ` · ${said}` : ""}${again}`;
}

function headline({ parts, problem, ended }) {
  if (problem) return problem;
  if (!parts.length) return "Connecting …";
  if (parts.at(-1).status === "Complete") return "Your video is ready";
  if (ended || parts.at(-1).status === "Failed") return "The video could not be made";
  if (parts.every((part) => part.status === "Queued" && !part.attempt)) return "Waiting for a GPU …";
  const done = parts.filter((part) => part.status === "Complete").length;
  return `Making the video … ${done} of ${parts.length} steps done`;
}

function showState(state) {
  $("state").textContent = headline(state);
  $("all").value = state.parts.reduce((sum, part) => sum + fraction(part), 0) / (state.parts.length || 1);
  $("parts").replaceChildren(...state.parts.map((part, index) => {
    const item = element("li"), last = index === state.parts.length - 1;
    item.className = { Complete: "done", Failed: "failed" }[part.status] || "";
    item.append(
      element("b", last ? "Joining the parts" : `Picture ${index + 1} to ${index + 2}`), element("span", words(part)));
    return item;
  }));
}

function follow(address) {
  const events = new EventSource(`${address}/events`);
  events.onopen = () => { $("connection").hidden = true; };
  events.onerror = () => { $("connection").hidden = false; };
  events.onmessage = (event) => {
    const state = JSON.parse(event.data);
    showState(state);
    if (!state.ended) return;
    events.close(); // otherwise the browser would connect again
    $("all").hidden = true;
    if (state.parts.at(-1)?.status !== "Complete") return;
    $("video").src = $("save").href = address;
    $("video").hidden = $("save").hidden = false;
  };
}

$("files").onchange = () => { choose($("files").files); $("files").value = ""; };
$("form").onsubmit = submit;
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") choose(event.dataTransfer.files);
  });
}
const video = new URLSearchParams(location.search).get("video");
$("form").hidden = video !== null;
$("journey").hidden = video === null;
if (video !== null) follow(`/videos/${encodeURIComponent(video)}`);
