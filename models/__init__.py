"""Builds the two tiny stand-in models: dialogues, tokenizers, training, drafters, evaluation."""
