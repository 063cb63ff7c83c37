"""How the two tiny stand-in models are made: dialogues, tokenizers, training, drafters, and what they are worth."""
