// From a conversation to the body of a request to the server's Responses API.

export const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  maxTokens: "",
  thinking: "",
  seed: "",
  schema: "",
};

export function drawSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// `turns` end with the question. `images` has data URIs by id. Empty settings are left to the
// server. Speculation never changes the tokens: with `plain` the same seed gives the same answer.
// With `continues` they end with an answer, which goes on. `most`: its tokens, in place of the
// setting.
export function requestBody(turns, settings, options) {
  const { seed, images = new Map(), plain = false, continues = false, most } = options;
  const body = {
    model: settings.model,
    input: turns.flatMap((turn) => items(turn, images)),
    stream: true,
    background: true,
    seed,
    mark_drafted: true,
  };
  if (settings.system.trim()) body.instructions = settings.system;
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  const limit = most ?? settings.maxTokens;
  if (limit !== "") body.max_output_tokens = Number(limit);
  if (settings.thinking) {
    body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  }
  if (settings.schema.trim()) {
    const schema = JSON.parse(settings.schema);
    body.text = { format: { type: "json_schema", name: "answer", schema } };
  }
  if (plain) body.speculation = "off";
  if (continues) body.continue_final_message = true;
  return body;
}

function items(turn, images) {
  if (turn.role === "user") return [{ role: "user", content: contentOf(turn, images) }];
  const answer = [];
  if (turn.reasoning) {
    const content = [{ type: "reasoning_text", text: turn.reasoning }];
    answer.push({ type: "reasoning", content });
  }
  if (turn.text) answer.push({ role: "assistant", content: turn.text });
  return answer;
}

function contentOf({ text, images: shown = [] }, images) {
  if (!shown.length) return text;
  const pictures = shown.map(({ id }) => ({ type: "input_image", image_url: images.get(id) }));
  return [...pictures, { type: "input_text", text }];
}
