"""Inspection of models with hooks: traces, captured tensors, interventions, sweeps."""
