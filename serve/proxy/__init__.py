"""One request on its way to an engine, and the response on its way back."""
