"""The parts of an explanation: the explainer, its question, the objective, the attribution."""
