"""The papers' tables of what is counted and needs no training: elements, bytes and operations."""
