"use strict";

const find = (id) => document.getElementById(id);
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)}%`);

async function ask(path, body) {
  const headers = {};
  if (find("token").value) headers.authorization = `Bearer ${find("token").value}`;
  const options = { headers };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) find("access").hidden = false;
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error.message);
  return content;
}

function fill(list, rows) {
  list.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => {
      const box = document.createElement("td");
      box.textContent = cell;
      return box;
    }));
    return row;
  }));
}

function showNumbers(pairs) {
  find("numbers").replaceChildren(...pairs.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const meaning = document.createElement("dd");
    term.textContent = name;
    meaning.textContent = value;
    return [term, meaning];
  }));
}

function showMarks(text, explanation) {
  const letters = Array.from(text); // places count characters, not the halves of surrogate pairs
  const parts = [];
  let done = 0;
  for (const word of explanation.words.filter((one) => one.level > 0)) {
    const mark = document.createElement("mark");
    mark.className = `l${word.level}`;
    mark.textContent = letters.slice(word.start, word.end).join("");
    parts.push(letters.slice(done, word.start).join(""), mark);
    done = word.end;
  }
  parts.push(letters.slice(done).join(""));
  find("marked").replaceChildren(...parts);
  const marks = parts.length > 1 ? "The marked words speak against the text." : "No word is marked.";
  find("legend").textContent = `${marks} ${explanation.decided} says most against it.`;
}

function showResult(result) {
  const verdict = result.decision === "ID" ? "In-distribution: accepted" : "Out-of-distribution: refused";
  find("decision").textContent = result.decision === "OOD" && result.accepted ? `${verdict}, were it not for shadow mode` : verdict;
  const rate = result.passes_above;
  showNumbers([
    ["p-value", result.p_value.toPrecision(3)],
    ["passes at accept rates above", rate === null ? "none" : rate.toFixed(4)],
    ["score", result.score === null ? "none" : result.score.toPrecision(5)],
    ["tokens", `${result.tokens} in ${result.windows} ${result.windows === 1 ? "window" : "windows"}`],
  ]);
  find("note").textContent = result.note ?? "";
  find("result").hidden = false;
}

async function judge(text) {
  find("marked").replaceChildren();
  find("legend").textContent = "";
  try {
    const answer = await ask("v1/score", { text });
    if (answer.results.length === 0) throw new Error(answer.problem);
    showResult(answer.results[0]);
  } catch (error) {
    find("decision").textContent = "The text was not judged";
    showNumbers([]);
    find("note").textContent = error.message;
    find("result").hidden = false;
    return;
  }
  showRecent();
  try {
    showMarks(text, await ask("v1/explain", { text }));
  } catch (error) {
    find("legend").textContent = `No words are marked: ${error.message}`;
  }
}

async function showRecent() {
  try {
    const facts = await ask("v1/detector");
    const mode = facts.shadow ? " In shadow mode, nothing is refused." : "";
    find("facts").textContent = `Method ${facts.method}, accept rate ${facts.accept}, ${facts.calibration_texts} calibration texts.${mode}`;
    const counts = await ask("v1/shadow");
    const share = counts.judged ? counts.ood / counts.judged : null;
    find("summary").textContent = `${counts.judged} texts since the start, ${counts.ood} of them out-of-distribution (${percent(share)}).`;
    find("lengths").textContent = counts.judged
      ? `${percent(counts.unusual_lengths / counts.judged)} are shorter or longer than 99% of the texts that set the threshold.`
      : "";
    find("drift").textContent = counts.drift?.alarm ? "The scores have drifted towards lower ones." : "No drift was found.";
    fill(find("rates"), counts.rates.map((row) => [row.accept, row.refused, percent(row.share)]));
    const minutes = counts.minutes.slice(-10).reverse();
    fill(find("minutes"), minutes.map((row) => [row.minutes_ago, row.judged, row.ood, percent(row.ood / row.judged)]));
  } catch (error) {
    find("facts").textContent = error.message;
  }
}

find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  judge(find("text").value);
});
find("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("ask").requestSubmit();
});
find("token").addEventListener("change", showRecent);
showRecent();
