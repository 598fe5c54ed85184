// From a conversation to the body of a request to the server's Responses API.

// Settings that are fields of the body by the same name, all numbers.
export const SAMPLING = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "xtc_probability",
  "xtc_threshold",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
];

export const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  xtc_probability: "",
  xtc_threshold: "",
  repetition_penalty: "",
  presence_penalty: "",
  frequency_penalty: "",
  maxTokens: "",
  thinking: "",
  seed: "",
  schema: "",
  tools: "",
};

export function drawSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// `turns` end with the question or the results of calls. `images` has data URIs by id, `tools` what
// the model may call. Empty settings are left to the
// server. Speculation never changes the tokens: with `plain` the same seed gives the same answer.
// With `continues` they end with an answer, which goes on. `most`: its tokens, in place of the
// setting.
export function requestBody(turns, settings, options) {
  const { seed, images = new Map(), tools = [], plain = false, continues = false, most } = options;
  const body = {
    model: settings.model,
    input: turns.flatMap((turn) => items(turn, images)),
    stream: true,
    background: true,
    seed,
    mark_drafted: true,
  };
  if (tools.length) body.tools = tools;
  if (settings.system.trim()) body.instructions = settings.system;
  for (const name of SAMPLING) if (settings[name]) body[name] = Number(settings[name]);
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
  return [...answer, ...calls(turn)];
}

const UNDECIDED = "The user has not allowed this call.";

function calls({ calls: called = [] }) {
  return called.flatMap(({ id, name, arguments: given, result = UNDECIDED }) => [
    { type: "function_call", call_id: id, name, arguments: given },
    { type: "function_call_output", call_id: id, output: result },
  ]);
}

// Files come first: a later question about them begins with the same tokens.
function contentOf({ text, images: files = [] }, uris) {
  if (!files.length) return text;
  const parts = files.map(({ id, name, bytes }) => {
    const uri = uris.get(id);
    if (bytes === undefined) return { type: "input_image", image_url: uri };
    return { type: "input_file", filename: name, file_data: uri };
  });
  return [...parts, { type: "input_text", text }];
}
