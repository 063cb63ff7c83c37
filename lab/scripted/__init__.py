"""The scripted engine: answers every request with the bytes, frames and pauses that whoever asks has laid down."""
