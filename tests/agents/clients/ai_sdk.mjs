// Vercel's AI SDK over all three APIs: the loops of harness.py, and what it prints of them.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { main, QUESTION } from "./harness.mjs";

const Trip = z.object({ city: z.string(), days: z.number().int() });
const APIS = {
  responses: (baseURL) => createOpenAI({ baseURL, apiKey: "none" })("m"),
  chat: (baseURL) => createOpenAICompatible({ name: "specgate", baseURL, supportsStructuredOutputs: true })("m"),
  messages: (baseURL) => createAnthropic({ baseURL, apiKey: "none" })("m"),
};

async function loop(model, cities, stream) {
  const weather = tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `21 degrees in ${city}`;
    },
  });
  const asked = { model, prompt: QUESTION, tools: { get_weather: weather }, stopWhen: stepCountIs(4), maxRetries: 0 };
  if (!stream) return (await generateText(asked)).text;
  let failed;
  const result = streamText({ ...asked, onError: ({ error }) => (failed = error) });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  if (failed) throw failed;
  return text;
}

async function document(model) {
  return JSON.stringify((await generateObject({ model, schema: Trip, prompt: "Plan a trip.", maxRetries: 0 })).object);
}

main((url) => {
  const loops = {};
  for (const [api, model] of Object.entries(APIS)) {
    const made = model(`${url}/v1`);
    loops[`${api} whole`] = (cities) => loop(made, cities, false);
    loops[`${api} streamed`] = (cities) => loop(made, cities, true);
    loops[`${api} document`] = () => document(made);
  }
  return loops;
});
