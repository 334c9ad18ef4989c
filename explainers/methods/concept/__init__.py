"""Concepts: factors of a layer's activations."""
