"""Other APIs than chat completions, translated to chat and back, so that policy and guard work for all of them."""
