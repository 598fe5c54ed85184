// What the server does for an answer before its first token, a `stage`: loading the model, waiting
// for other requests, reading the prompt. `share` of it is done, `left` seconds are to come; null:
// unknown.

// `live`: the figures of `/admin/api/live`, null if the server did not answer.
export function stageOf({ model, response }, live) {
  if (!live) return null;
  const loading = live.loading.find((each) => each.model === model);
  if (!response) return loading ? { stage: "loading", share: loading.share, left: null } : null;
  const request = live.requests.find(({ id }) => id.startsWith(response));
  if (!request) return null;
  if (request.phase === "writing") return null;
  const share = request.phase === "reading" ? request.read / request.prompt : null;
  return { stage: request.phase, share, left: request.left_s };
}
