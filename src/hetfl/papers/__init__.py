"""The papers: what they print, and which of our cells stand beside it."""
