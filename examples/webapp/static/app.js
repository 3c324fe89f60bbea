"use strict";
// The page of the web app. Text from others (file names, tasks) is only ever set as textContent.

const MAX_PICTURES = 8, MAX_PICTURE_BYTES = 12 * 2 ** 20, MAX_UPLOAD_BYTES = 60 * 2 ** 20;
const $ = (id) => document.getElementById(id);
let chosen = [];

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function drop(picture) {
  URL.revokeObjectURL(picture.url);
  chosen = chosen.filter((one) => one !== picture);
  showChosen();
}

function showChosen() {
  $("chosen").replaceChildren(...chosen.map((picture, index) => {
    const item = document.createElement("li"), image = new Image(), name = document.createElement("span");
    const remove = document.createElement("button");
    image.src = picture.url;
    image.alt = "";
    name.textContent = picture.file.name;
    remove.type = "button";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", `Remove picture ${index + 1}`);
    remove.onclick = () => drop(picture);
    image.onerror = () => { // each attempt of a task that cannot read it would cost GPU time
      problem(`${picture.file.name} is not a picture that can be read.`);
      drop(picture);
    };
    item.append(image, name, remove);
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
    const answer = await fetch("/journeys", { method: "POST", body: form });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    history.pushState(null, "", `/journeys/${said.id}`);
    show();
  } catch (error) {
    problem(error instanceof TypeError ? "The upload failed. Please try again." : error.message);
    showChosen();
  }
}

function words(part) {
  if (part.status === "Complete") return "done";
  if (part.status === "Failed") return part.error ? `failed: ${part.error}` : "failed";
  if (part.status === "Cancelled") return "cancelled";
  if (part.status !== "In Progress") return part.attempt ? `waits for attempt ${part.attempt + 1}` : "waits";
  const again = part.attempt > 1 ? `, attempt ${part.attempt}` : "";
  return `${Math.round(100 * part.fraction)} %${part.message ? ` · ${part.message}` : ""}${again}`;
}

function headline(state, done) {
  const last = state.parts.at(-1);
  if (state.problem) return state.problem;
  if (!last) return "Connecting …";
  if (last.status === "Complete") return "Your video is ready";
  if (last.status === "Failed" || last.status === "Cancelled") return "The video could not be made";
  if (state.parts.every((part) => part.status === "Queued" && !part.attempt)) return "Waiting for a GPU …";
  return `Making the video … ${done} of ${state.parts.length} steps done`;
}

function showState(state) {
  const value = (part) => (part.status === "Complete" ? 1 : part.status === "In Progress" ? part.fraction : 0);
  $("state").textContent = headline(state, state.parts.filter((part) => part.status === "Complete").length);
  $("all").value = state.parts.reduce((sum, part) => sum + value(part), 0) / (state.parts.length || 1);
  $("parts").replaceChildren(...state.parts.map((part, index) => {
    const item = document.createElement("li"), name = document.createElement("b"), how = document.createElement("span");
    name.textContent = index === state.parts.length - 1 ? "Joining the parts" : `Picture ${index + 1} to ${index + 2}`;
    how.textContent = words(part);
    item.className = { Complete: "done", Failed: "failed" }[part.status] || "";
    item.append(name, how);
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
    $("video").src = $("save").href = `${address}/video`;
    $("video").hidden = $("save").hidden = false;
  };
}

function show() {
  const isJourney = location.pathname.startsWith("/journeys/");
  $("form").hidden = isJourney;
  $("journey").hidden = !isJourney;
  if (isJourney) follow(location.pathname);
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
addEventListener("popstate", () => location.reload());
show();
