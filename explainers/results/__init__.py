"""Results of explanations: values, drawings, files."""
