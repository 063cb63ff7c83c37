"""OpenAI's Responses, stateless: `POST /v1/responses` as one chat completion, and its answer as items and events."""
