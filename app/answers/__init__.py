"""Encoding of results: documents, drawings, arrays, streams."""
