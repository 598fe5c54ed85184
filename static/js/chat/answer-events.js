// What the events of a response make of an answer. The answer is a message of the conversation:
//
//   status     running, done, stopped, failed (by the server), lost (the server forgot it)
//   attempt    1, and one more each time that it is generated again in its place
//   sequence   number of the newest event, from which a broken stream is resumed
//   drafted    [start, end) of the runs of `text` that came from drafts
//   firstMs    time from the request to its first token
//   thinkingMs time from the first token of the reasoning to the first one of the text
//   calls      tools that the model calls: { id, name, arguments, status, result, failed }; status is
//              asked, running, done or refused
//   resumed    its events no longer say when they happened: the stream broke, or the page was left
//   twin       the answer that it stands beside; of the same model without drafts, or with `versus`
//              of another model
//   edited     the user has written it
//   continued  its beginning is older than this attempt

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed"]);

export function newAnswer(fields) {
  const empty = { text: "", reasoning: "", drafted: [], sequence: -1, attempt: 1 };
  return { role: "assistant", status: "running", ...empty, ...fields };
}

// Whether the model can go on where the answer ends.
export function isContinuable({ status, text, cut, edited }) {
  if (!text.trim()) return false;
  return cut || edited || status === "stopped" || status === "lost" || status === "failed";
}

// What a continued answer begins with. A template may drop the blanks at its end.
export function begun({ text, reasoning, drafted, thinkingMs, edited }) {
  const kept = text.trimEnd();
  const runs = drafted.filter(([start]) => start < kept.length);
  const within = runs.map(([start, end]) => [start, Math.min(end, kept.length)]);
  const fields = { text: kept, reasoning, drafted: within, resumed: true, continued: true };
  return { ...fields, ...(thinkingMs ? { thinkingMs } : {}), ...(edited ? { edited } : {}) };
}

// Modify an answer by an event that arrived at `now` (ms). Return whether it has ended.
export function apply(answer, event, now) {
  if (!(event.sequence_number > answer.sequence)) return false;
  answer.sequence = event.sequence_number;
  switch (event.type) {
    case "response.created":
      answer.response = event.response.id;
      answer.model = event.response.model;
      answer.warnings = event.response.warnings ?? [];
      break;
    case "response.reasoning_text.delta":
      first(answer, now);
      answer.thinkingSince ??= now;
      answer.reasoning += event.delta;
      break;
    case "response.output_text.delta":
      first(answer, now);
      thought(answer, now);
      if (event.drafted) markDrafted(answer, event.delta.length);
      answer.text += event.delta;
      break;
    case "response.output_item.done":
      if (event.item.type === "function_call") addCall(answer, event.item, now);
      break;
  }
  if (!ENDS.has(event.type)) return false;
  end(answer, event.response, now);
  return true;
}

function addCall(answer, { call_id: id, name, arguments: given }, now) {
  first(answer, now);
  thought(answer, now);
  answer.calls = [...(answer.calls ?? []), { id, name, arguments: given, status: "asked" }];
}

function first(answer, now) {
  if (!answer.resumed) answer.firstMs ??= now - answer.created;
}

function thought(answer, now) {
  const known = !answer.resumed && answer.thinkingSince !== undefined;
  if (known) answer.thinkingMs ??= now - answer.thinkingSince;
}

function markDrafted(answer, length) {
  const start = answer.text.length;
  const last = answer.drafted.at(-1);
  if (last?.[1] === start) last[1] += length;
  else answer.drafted.push([start, start + length]);
}

function end(answer, response, now) {
  thought(answer, now);
  answer.usage = response.usage;
  answer.timings = response.timings;
  answer.cut = response.incomplete_details !== null;
  const ended = { failed: "failed", cancelled: "stopped" };
  answer.status = ended[response.status] ?? "done";
  if (response.error) answer.error = response.error;
}

// How long it thought: as seen here, else the share of its tokens in the server's time.
export function thinkingSeconds({ thinkingMs, usage, timings }) {
  if (thinkingMs) return thinkingMs / 1000;
  const tokens = usage?.output_tokens_details?.reasoning_tokens;
  if (!tokens || !timings?.predicted_n) return null;
  return (timings.predicted_ms * tokens) / timings.predicted_n / 1000;
}
