// OpenAI's SDK for JavaScript over two APIs: the loops of harness.py, and what it prints of them.
import OpenAI from "openai";
import { main, QUESTION } from "./harness.mjs";

const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const TRIP = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};

async function responses(client, cities, stream) {
  const tool = { type: "function", name: "get_weather", parameters: PARAMETERS, strict: true };
  const input = [{ role: "user", content: QUESTION }];
  for (;;) {
    const asked = { model: "m", input, tools: [tool], store: false };
    const response = await (stream ? client.responses.stream(asked).finalResponse() : client.responses.create(asked));
    if (response.status !== "completed") throw new Error(`${response.status}: ${response.error?.message}`);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return response.output_text;
    input.push(...response.output);
    for (const call of calls) {
      cities.push(JSON.parse(call.arguments).city);
      input.push({ type: "function_call_output", call_id: call.call_id, output: `21 degrees in ${cities.at(-1)}` });
    }
  }
}

async function chat(client, cities, stream) {
  const weather = ({ city }) => {
    cities.push(city);
    return `21 degrees in ${city}`;
  };
  const tool = { function: weather, parse: JSON.parse, name: "get_weather", description: "d", parameters: PARAMETERS };
  const messages = [{ role: "user", content: QUESTION }];
  const asked = { model: "m", messages, stream, tools: [{ type: "function", function: tool }] };
  return client.chat.completions.runTools(asked).finalContent();
}

async function document(client) {
  const format = { type: "json_schema", name: "Trip", schema: TRIP, strict: true };
  const response = await client.responses.parse({ model: "m", input: "Plan a trip.", text: { format } });
  return JSON.stringify(response.output_parsed);
}

main((url) => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  return {
    "responses whole": (cities) => responses(client, cities, false),
    "responses streamed": (cities) => responses(client, cities, true),
    "chat whole": (cities) => chat(client, cities, false),
    "chat streamed": (cities) => chat(client, cities, true),
    "responses document": () => document(client),
  };
});
