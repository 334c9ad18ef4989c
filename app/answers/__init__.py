"""Results to bytes: documents, drawings, arrays, streams."""
